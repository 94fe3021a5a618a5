"""Cursors: the beginning of the next page. They are opaque to callers, and bound to a query."""

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BigInteger, Double
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.inference.errors import Fault, InvalidCursor
from inference_store.inference.json_text import exact, storable
from inference_store.inference.metadata import Family

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


# An id of 256 characters, or a number of 1,400 digits: in base64.
MOST_CHARACTERS = 2048
_LETTERS: dict[Family, bytes] = {"number": b"n", "string": b"s", "bool": b"b", "timestamp": b"t"}
_FAMILIES = {letter: family for family, letter in _LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position after which a page begins.

    `value` None: among those without one, which come last.
    """

    kind: Family
    uid: UUID
    value: Any = None


def encode_sorted(query: bytes, cursor: Cursor) -> str:
    """Encode a cursor."""
    letter = _LETTERS[cursor.kind]
    if cursor.value is None:
        return seal(query, cursor.uid.bytes + letter.upper())
    return seal(query, cursor.uid.bytes + letter + _format_value(cursor.value).encode("utf-8"))


def _format_value(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def find_family(cursor: str | None) -> Family | None:
    """Return the family that the page before was sorted by, or None if the cursor has none."""
    if cursor is None:
        return None
    return _FAMILIES.get(read_payload(cursor)[_UID_BYTES : _UID_BYTES + 1].lower())


def decode_sorted(query: bytes, cursor: str, kind: Family, type_: TypeEngine[Any]) -> Cursor:
    """Decode a cursor.

    Raises InvalidCursor if it is damaged, or of another query or family.
    """
    payload = open_sealed(query, cursor)
    letter, spelt = payload[_UID_BYTES : _UID_BYTES + 1], payload[_UID_BYTES + 1 :]
    uid = payload[:_UID_BYTES]
    if letter.lower() != _LETTERS[kind]:
        raise make_refusal("it is damaged")
    if letter.isupper():
        return Cursor(kind, UUID(bytes=uid))
    try:
        return Cursor(kind, UUID(bytes=uid), _READ[kind](spelt.decode("utf-8"), type_))
    except (ValueError, OverflowError, ArithmeticError):
        raise make_refusal("it is damaged") from None


def _parse_number(text: str, type_: TypeEngine[Any]) -> Any:
    if isinstance(type_, Double):
        return float(text)
    value = exact(text, digits=MOST_CHARACTERS, exponent=MOST_CHARACTERS)
    if value is None:
        raise ValueError(text)
    if not isinstance(type_, BigInteger):
        return value
    if value != value.to_integral_value() or not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return int(value)


def _parse_text(text: str, _: TypeEngine[Any]) -> str:
    if not storable(text):
        raise ValueError(text)
    return text


def _parse_bool(text: str, _: TypeEngine[Any]) -> bool:
    if text not in {"True", "False"}:
        raise ValueError(text)
    return text == "True"


def _parse_instant(text: str, _: TypeEngine[Any]) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(text)
    return instant.astimezone(UTC)


_READ: dict[Family, Callable[[str, TypeEngine[Any]], Any]] = {
    "number": _parse_number,
    "string": _parse_text,
    "bool": _parse_bool,
    "timestamp": _parse_instant,
}
