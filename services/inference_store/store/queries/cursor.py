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
    return base64.urlsafe_b64encode(query + uid.bytes).rstrip(b"=").decode()


def decode(query: bytes, cursor: str) -> UUID:
    """The uid to go on after. Raises InvalidCursor for a damaged one, or another query's."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("it is damaged") from None
    if len(raw) != _HASH_BYTES + _UID_BYTES:
        raise _invalid("it is damaged")
    if raw[:_HASH_BYTES] != query:
        raise _invalid("it was made for another query")
    return UUID(bytes=raw[_HASH_BYTES:])


def _invalid(why: str) -> InvalidCursor:
    detail = f"The cursor cannot be used: {why}. Send the first page's body again, without one."
    return InvalidCursor(detail, faults=[Fault("cursor", why)])
