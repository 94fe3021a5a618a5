"""Where the next page begins: opaque to callers, bound to its query."""

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
    """What a cursor knows its query by."""
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]


def encode(query: bytes, uid: UUID) -> str:
    """A cursor that goes on after `uid`."""
    return seal(query, uid.bytes)


def decode(query: bytes, cursor: str) -> UUID:
    """The uid to go on after. Raises InvalidCursor for a damaged one, or another query's."""
    payload = open_sealed(query, cursor)
    if len(payload) != _UID_BYTES:
        raise make_refusal("it is damaged")
    return UUID(bytes=payload)


def seal(query: bytes, payload: bytes) -> str:
    """A cursor of that query."""
    return _encode_base64(query + payload)


def open_sealed(query: bytes, cursor: str) -> bytes:
    """What was sealed. Raises InvalidCursor as `decode` does."""
    raw = _decode_base64(cursor)
    if len(raw) < _HASH_BYTES + _UID_BYTES:
        raise make_refusal("it is damaged")
    if raw[:_HASH_BYTES] != query:
        raise make_refusal("it was made for another query")
    return raw[_HASH_BYTES:]


def read_payload(cursor: str) -> bytes:
    """What was sealed, for whichever query. Raises InvalidCursor."""
    return _decode_base64(cursor)[_HASH_BYTES:]


def pin(cursor: str, now: datetime) -> str:
    """The cursor of a request with relative times: they stay what they are at `now`."""
    microseconds = (now - _EPOCH) // _MICROSECOND
    return f"{cursor}{_PINNED}{_encode_base64(microseconds.to_bytes(_INSTANT_BYTES, signed=True))}"


def unpin(cursor: str) -> tuple[str, datetime | None]:
    """The cursor without its instant, and the instant. Raises InvalidCursor for a damaged one."""
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
    """The refusal of a cursor."""
    detail = f"The cursor cannot be used: {why}. Send the first page's body again, without one."
    return InvalidCursor(detail, faults=[Fault("cursor", why)])
