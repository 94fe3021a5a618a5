"""Cursors: the beginning of the next page. They are opaque to callers, and bound to a query."""

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from inference_store.inference.errors import Fault, InvalidCursor

_HASH_BYTES = 8
_UID_BYTES = 16
_PINNED: Final = "."  # no letter of base64
_INSTANT_BYTES: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def fingerprint(canonical: str) -> bytes:
    """Return the hash by which a cursor identifies its query."""
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]


def encode(query: bytes, uid: UUID) -> str:
    """Return a cursor that continues after `uid`."""
    return seal(query, uid.bytes)


def decode(query: bytes, cursor: str) -> UUID:
    """Return the uid to continue after.

    Raises InvalidCursor for a damaged cursor, or another query's.
    """
    payload = open_sealed(query, cursor)
    if len(payload) != _UID_BYTES:
        raise make_refusal("it is damaged")
    return UUID(bytes=payload)


def seal(query: bytes, payload: bytes) -> str:
    """Return a cursor of that query with this payload."""
    return _encode_base64(query + payload)


def open_sealed(query: bytes, cursor: str) -> bytes:
    """Return the payload. Raises InvalidCursor as `decode` does."""
    raw = _decode_base64(cursor)
    if len(raw) < _HASH_BYTES + _UID_BYTES:
        raise make_refusal("it is damaged")
    if raw[:_HASH_BYTES] != query:
        raise make_refusal("it was made for another query")
    return raw[_HASH_BYTES:]


def read_payload(cursor: str) -> bytes:
    """Return the payload, whatever the query. Raises InvalidCursor."""
    return _decode_base64(cursor)[_HASH_BYTES:]


def pin(cursor: str, now: datetime) -> str:
    """Add the instant `now` to a cursor: relative times of the request keep referring to it."""
    microseconds = (now - _EPOCH) // _MICROSECOND
    return f"{cursor}{_PINNED}{_encode_base64(microseconds.to_bytes(_INSTANT_BYTES, signed=True))}"


def unpin(cursor: str) -> tuple[str, datetime | None]:
    """Split a cursor into the plain cursor and its instant.

    Raises InvalidCursor for a damaged one.
    """
    plain, pinned, at = cursor.partition(_PINNED)
    if not pinned:
        return cursor, None
    try:
        microseconds = int.from_bytes(_decode_base64(at), signed=True)
        return plain, _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        raise make_refusal("it is damaged") from None


def _encode_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_base64(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise make_refusal("it is damaged") from None


def make_refusal(why: str) -> InvalidCursor:
    """Return the error that refuses a cursor."""
    detail = f"The cursor cannot be used: {why}. Send the first page's body again, without one."
    return InvalidCursor(detail, faults=[Fault("cursor", why)])
