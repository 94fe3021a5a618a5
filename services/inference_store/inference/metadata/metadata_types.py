"""The types of metadata in one table: their names, families and parsers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from .caps import MetadataCaps
from .values import read_bool, read_float, read_int, read_json_text, read_string, read_timestamp

Family: TypeAlias = Literal["number", "string", "bool", "timestamp"]
Parsed: TypeAlias = tuple[Decimal | str | bool | datetime | None, str | None]


class MetadataType(StrEnum):
    """The canonical types."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TIMESTAMP = "timestamp"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class MetadataTypeEntry:
    """One type."""

    name: str
    """The canonical name, as plain text."""
    type: MetadataType
    accepted: tuple[str, ...]
    """Names of the type, in any case of letters, including the canonical one."""
    family: Family | None
    """The side table of its values; None for `json`, whose leaves have their own."""
    meaning: str
    parse: Callable[[str, MetadataCaps], Parsed]
    """Converts a text to (value, flag): a value of None is not indexed as its type, and the flag
    says why. `json` has no value: it is split into leaves."""


def _table(*entries: MetadataTypeEntry) -> Mapping[str, MetadataTypeEntry]:
    return MappingProxyType({entry.name: entry for entry in entries})


METADATA_TYPES: Final = _table(
    MetadataTypeEntry(
        "string",
        MetadataType.STRING,
        ("string", "str"),
        "string",
        "text, compared in code-point order",
        read_string,
    ),
    MetadataTypeEntry(
        "int",
        MetadataType.INT,
        ("int", "integer"),
        "number",
        "a whole number of any size, compared exactly; `987.0` is one",
        read_int,
    ),
    MetadataTypeEntry(
        "float",
        MetadataType.FLOAT,
        ("float", "double", "number"),
        "number",
        "a decimal number, compared exactly, also with an int",
        read_float,
    ),
    MetadataTypeEntry(
        "bool",
        MetadataType.BOOL,
        ("bool", "boolean"),
        "bool",
        "true, false, 1 or 0, in any case of letters",
        read_bool,
    ),
    MetadataTypeEntry(
        "timestamp",
        MetadataType.TIMESTAMP,
        ("timestamp", "datetime", "date"),
        "timestamp",
        "an instant, RFC 3339, compared in UTC; a date is its midnight, no offset means UTC",
        read_timestamp,
    ),
    MetadataTypeEntry(
        "json",
        MetadataType.JSON,
        ("json", "dict", "object"),
        None,
        "its leaves, by path: `camera_position.angle`; elements of arrays as `tags[]`",
        read_json_text,
    ),
)

TYPE_NAMES: Final[Mapping[str, MetadataTypeEntry]] = MappingProxyType(
    {name: entry for entry in METADATA_TYPES.values() for name in entry.accepted}
)


def type_named(name: str) -> MetadataTypeEntry | None:
    """Return the type that a declared name means; None if there is none."""
    return TYPE_NAMES.get(name) or TYPE_NAMES.get(name.strip().lower())
