"""Cursors: the beginning of the next page. They are opaque to callers, and bound to a query."""

import base64
import binascii
import hashlib
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
_VALUE_AT: Final = _HASH_BYTES + 16
"""Where the value begins: behind the hash and the uid."""
_PINNED: Final = "."  # no letter of base64
_INSTANT_BYTES: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def fingerprint(canonical: str) -> bytes:
    """Return the hash by which a cursor identifies its query."""
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()[:_HASH_BYTES]


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

    `kind`: of the values that it is sorted by; None: by time. `value` None: among those without
    one, which come last.
    """

    uid: UUID
    kind: Family | None = None
    value: Any = None


def encode(query: bytes, cursor: Cursor) -> str:
    """Return the cursor as text, for this query."""
    value = b""
    if cursor.kind is not None:
        letter = _LETTERS[cursor.kind]
        none = cursor.value is None
        value = letter.upper() if none else letter + _format_value(cursor.value).encode()
    return _encode_base64(query + cursor.uid.bytes + value)


def _format_value(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def find_family(cursor: str | None) -> Family | None:
    """Return the family that the page before was sorted by, or None if the cursor has none."""
    if cursor is None:
        return None
    letter = _decode_base64(cursor)[_VALUE_AT : _VALUE_AT + 1]
    return _FAMILIES.get(letter.lower())


def decode(
    query: bytes, cursor: str, kind: Family | None = None, type_: TypeEngine[Any] | None = None
) -> Cursor:
    """Return the position to continue after, in the order of that kind, or of time.

    Raises InvalidCursor if it is damaged, or of another query or kind.
    """
    raw = _decode_base64(cursor)
    if len(raw) < _VALUE_AT:
        raise make_refusal("it is damaged")
    if raw[:_HASH_BYTES] != query:
        raise make_refusal("it was made for another query")
    uid, letter = UUID(bytes=raw[_HASH_BYTES:_VALUE_AT]), raw[_VALUE_AT : _VALUE_AT + 1]
    if _FAMILIES.get(letter.lower()) != kind or (kind is None and letter):
        raise make_refusal("it is damaged")
    if kind is None or letter.isupper():
        return Cursor(uid, kind)
    try:
        return Cursor(uid, kind, _read_value(raw[_VALUE_AT + 1 :].decode("utf-8"), kind, type_))
    except (ValueError, OverflowError, ArithmeticError):
        raise make_refusal("it is damaged") from None


def _read_value(text: str, kind: Family, type_: TypeEngine[Any] | None) -> Any:
    """Raises ValueError, ArithmeticError."""
    match kind:
        case "string" if storable(text):
            return text
        case "bool" if text in {"True", "False"}:
            return text == "True"
        case "timestamp":
            instant = datetime.fromisoformat(text)
            if instant.tzinfo is not None:
                return instant.astimezone(UTC)
        case "number" if isinstance(type_, Double):
            return float(text)
        case "number":
            value = exact(text, digits=MOST_CHARACTERS, exponent=MOST_CHARACTERS)
            if value is not None and not isinstance(type_, BigInteger):
                return value
            is_whole = value is not None and value == value.to_integral_value()
            if value is not None and is_whole and -(2**63) <= value < 2**63:
                return int(value)
    raise ValueError(text)
