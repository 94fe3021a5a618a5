"""Where the next page begins: opaque to callers, bound to its query."""

import base64
import binascii
import hashlib
from uuid import UUID

from inference_store.store.errors import Fault, InvalidCursor

_HASH_BYTES = 8
_UID_BYTES = 16


def fingerprint(canonical: str) -> bytes:
    """What a cursor knows its query by."""
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]


def encode(query: bytes, uid: UUID) -> str:
    """A cursor that goes on after `uid`."""
    return seal(query, uid.bytes)


def decode(query: bytes, cursor: str) -> UUID:
    """The uid to go on after. Raises InvalidCursor for a damaged one, or another query's."""
    payload = opened(query, cursor)
    if len(payload) != _UID_BYTES:
        raise invalid("it is damaged")
    return UUID(bytes=payload)


def seal(query: bytes, payload: bytes) -> str:
    """A cursor of that query."""
    return base64.urlsafe_b64encode(query + payload).rstrip(b"=").decode()


def opened(query: bytes, cursor: str) -> bytes:
    """What was sealed. Raises InvalidCursor as `decode` does."""
    raw = _raw(cursor)
    if len(raw) < _HASH_BYTES + _UID_BYTES:
        raise invalid("it is damaged")
    if raw[:_HASH_BYTES] != query:
        raise invalid("it was made for another query")
    return raw[_HASH_BYTES:]


def payload(cursor: str) -> bytes:
    """What was sealed, for whichever query. Raises InvalidCursor."""
    return _raw(cursor)[_HASH_BYTES:]


def _raw(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise invalid("it is damaged") from None


def invalid(why: str) -> InvalidCursor:
    """The refusal of a cursor."""
    detail = f"The cursor cannot be used: {why}. Send the first page's body again, without one."
    return InvalidCursor(detail, faults=[Fault("cursor", why)])
