"""The cursor of a sorted page: the value and uid after which the next one begins.

It contains the whole value: a number with all its digits, a text as far as it is sorted by. The
value is no secret: the caller was shown the page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Double
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.inference.json_text import exact, storable
from inference_store.inference.metadata import Family

from . import cursor as cursors

# An id of 256 characters, or a number of 1,400 digits: in base64.
MOST_CHARACTERS = 2048
_LETTERS: dict[Family, bytes] = {"number": b"n", "string": b"s", "bool": b"b", "timestamp": b"t"}
_UID_BYTES = 16
_FAMILIES = {letter: family for family, letter in _LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position after which a page begins.

    `value` None: among those without one, which come last.
    """

    kind: Family
    uid: UUID
    value: Any = None


def encode(query: bytes, cursor: Cursor) -> str:
    """Encode a cursor."""
    letter = _LETTERS[cursor.kind]
    if cursor.value is None:
        return cursors.seal(query, cursor.uid.bytes + letter.upper())
    return cursors.seal(
        query, cursor.uid.bytes + letter + _format_value(cursor.value).encode("utf-8")
    )


def _format_value(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def find_family(cursor: str | None) -> Family | None:
    """Return the family that the page before was sorted by, or None if the cursor has none."""
    if cursor is None:
        return None
    return _FAMILIES.get(cursors.read_payload(cursor)[_UID_BYTES : _UID_BYTES + 1].lower())


def decode(query: bytes, cursor: str, kind: Family, type_: TypeEngine[Any]) -> Cursor:
    """Decode a cursor.

    Raises InvalidCursor if it is damaged, or of another query or family.
    """
    payload = cursors.open_sealed(query, cursor)
    letter, spelt = payload[_UID_BYTES : _UID_BYTES + 1], payload[_UID_BYTES + 1 :]
    uid = payload[:_UID_BYTES]
    if letter.lower() != _LETTERS[kind]:
        raise cursors.make_refusal("it is damaged")
    if letter.isupper():
        return Cursor(kind, UUID(bytes=uid))
    try:
        return Cursor(kind, UUID(bytes=uid), _READ[kind](spelt.decode("utf-8"), type_))
    except (ValueError, OverflowError, ArithmeticError):
        raise cursors.make_refusal("it is damaged") from None


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
