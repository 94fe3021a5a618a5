"""The values of metadata: their types and caps, and the leaves of JSON values.

What is over a cap is kept, not indexed, and flagged.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from inference_store.inference.json_text import (
    Json,
    RepeatedNames,
    TooDeep,
    UnreadableJson,
    exact,
    is_non_finite,
    is_number,
    list_members,
    read_exactly,
    storable,
)


@dataclass(frozen=True, slots=True)
class MetadataCaps:
    """The limits for one inference."""

    keys: int = 256
    """Keys that are indexed; those after are kept."""
    key_characters: int = 256
    """Characters of a key or of a path into a JSON value."""
    levels: int = 8
    """Objects and arrays inside each other in a JSON value."""
    leaves: int = 256
    """Leaves of all JSON values of one inference together."""
    digits: int = 1_000
    """Digits of a number, before and after the point together."""
    exponent: int = 400
    """The largest |exponent| that a number may be written with."""
    blob_bytes: int = 1_048_576
    """Bytes of a metadata blob; a larger one is not read."""


# Converts texts to typed values. Each function returns (value, flag).
#
# A value of None is not indexed as its type, and the flag says why (`not_int`, `number_too_large`).
# A value with a flag is indexed, and the flag is a remark (`no_offset`).

# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ]((?!24)\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-]\d\d:\d\d))?)?",
    re.ASCII,
)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_string(text: str, _: MetadataCaps) -> tuple[str | None, str | None]:
    """Read any text that Postgres can store; else flag `nul_character` or `lone_surrogate`."""
    if storable(text):
        return text, None
    return None, "nul_character" if "\0" in text else "lone_surrogate"


def read_int(text: str, caps: MetadataCaps) -> tuple[Decimal | None, str | None]:
    """Read a whole number; `987.0` and `1e3` are whole, too."""
    if len(text) <= 18 and text.isdecimal() and text.isascii():
        return Decimal(text), None
    value, flag = _number(text, caps, "not_int")
    if value is None or value == value.to_integral_value():
        return value, flag
    return None, "not_int"


def read_float(text: str, caps: MetadataCaps) -> tuple[Decimal | None, str | None]:
    """Read a decimal number, exactly as it was written."""
    return _number(text, caps, "not_float")


def read_json_text(text: str, _: MetadataCaps) -> tuple[None, str | None]:
    """Return no value, as JSON is split into leaves; flag `not_json` or `too_deep` if it cannot
    be."""
    try:
        read_exactly(text)
    except TooDeep:
        return None, "too_deep"
    except UnreadableJson:
        return None, "not_json"
    return None, None


def read_bool(text: str, _: MetadataCaps) -> tuple[bool | None, str | None]:
    """Read `true`, `false`, `1` or `0`, in any case of letters."""
    value = _BOOLEANS.get(text.strip().lower())
    return value, "not_bool" if value is None else None


def read_timestamp(text: str, _: MetadataCaps) -> tuple[datetime | None, str | None]:
    """Read RFC 3339, floored to microseconds, in UTC; a date is its midnight.

    Without an offset it is read as UTC and flagged `no_offset`. A leap second is `not_timestamp`.
    """
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        return None, "not_timestamp"
    date, time, fraction, zulu, offset = match.groups()
    spelled = f"{date}T{time or '00:00:00'}.{(fraction or '')[:6]:0<6}{offset or '+00:00'}"
    try:
        value = datetime.fromisoformat(spelled).astimezone(UTC)
    except (ValueError, OverflowError):  # no such day or hour; beyond year 1 or 9999 in UTC
        return None, "not_timestamp"
    return value, None if zulu or offset or time is None else "no_offset"


def _number(text: str, caps: MetadataCaps, otherwise: str) -> tuple[Decimal | None, str | None]:
    text = text.strip()
    try:
        value = exact(text, digits=caps.digits, exponent=caps.exponent)
    except ValueError:
        return None, "not_finite" if is_non_finite(text) else otherwise
    return value, "number_too_large" if value is None else None


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


KEY_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"dataset_split": "dataset_snapshot_split"}
)
"""Keys that are indexed under another name."""

COORDINATES: Final[Mapping[str, Decimal]] = MappingProxyType(
    {"latitude": Decimal(90), "longitude": Decimal(180)}
)
"""Keys of a place on the map, in degrees, and their largest absolute value."""


TAGS: Final = "tags"
"""The key of tags: an array of texts; what is no array is indexed as an array of its text."""


Section: TypeAlias = Literal["standard", "extended"]
Indexable: TypeAlias = Decimal | str | bool | datetime


# Named tuples, not dataclasses: twenty are made per event, each at a third of the cost.
class Entry(NamedTuple):
    """One metadata item as it came."""

    key: str
    type: str
    """The declared type's name as it came; empty when none was declared."""
    value: str | None
    """The string as it came; JSON text for anything that was not a string; None for null."""
    section: Section
    flags: tuple[str, ...] = ()


class Leaf(NamedTuple):
    """One value to index."""

    name: str
    """The key, or the path into a JSON value; elements of an array are `tags[]`."""
    type: MetadataType
    family: Family
    value: Indexable
    """Number: Decimal, finite, within the caps. Timestamp: UTC. String: storable by Postgres."""
    flags: tuple[str, ...] = ()


class Presence(NamedTuple):
    """A name that was sent, whether or not it has a leaf."""

    name: str
    type: str
    is_null: bool
    """All that was sent under the name is JSON null."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """All metadata of one inference."""

    entries: tuple[Entry, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    """Deduplicated by (name, family, value)."""
    presences: tuple[Presence, ...] = ()
    """Names without a leaf, values that are no value of their type, every object and array."""
    several: tuple[str, ...] = ()
    """Names with several values of a family, beside elements of arrays."""
    flags: tuple[str, ...] = ()
    problem: str | None = None
    """The problem and its place, for people."""


_JSON: Final = MetadataType.JSON.value
_CONTAINERS: Final = (dict, list)
_WHOLE: Final = frozenset("+-0123456789")
MOST_TOO_LONG: Final = 32
"""The most names of one inference that are too long to be indexed, and are reported by their
beginning."""


@dataclass(slots=True)
class JsonSplitter:
    """The JSON values of one inference, whose leaves count against one cap."""

    caps: MetadataCaps
    rows: list[Leaf | Presence] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    """Flags of the value split last."""
    too_long: dict[str, Presence] = field(default_factory=dict)
    """The presences of names that are too long, by the name's beginning and `…`."""
    _leaves: int = 0

    def split(self, key: str, value: Json) -> tuple[str, ...]:
        """Add the leaves and presences of the JSON value of a key; return its flags.

        A null, an empty object and an empty array count as a leaf.
        """
        self.flags = []
        root = Presence(key, _JSON, value is None)
        self.rows.append(root)
        self._add_node(key, value, 0)
        return tuple(dict.fromkeys(self.flags))

    def note_too_long(self, name: str, kind: str, *, is_null: bool) -> None:
        """Note a name that is too long for the key registry."""
        beginning = f"{name[: self.caps.key_characters - 1]}…"
        if storable(beginning) and len(self.too_long) < MOST_TOO_LONG:
            presence = Presence(beginning, kind, is_null, ("key_too_long",))
            self.too_long.setdefault(beginning, presence)

    def _add_node(self, name: str, value: Json, level: int) -> None:
        if len(name) > self.caps.key_characters:
            self.flags.append("key_too_long")
            self.note_too_long(name, _JSON, is_null=value is None)
        elif not storable(name):
            self.flags.append("key_not_text")
        elif self._leaves >= self.caps.leaves:
            self.flags.append("leaves_capped")
        elif isinstance(value, _CONTAINERS):
            self._add_container(name, value, level + 1)
        else:
            self._leaves += 1
            self._add_scalar(name, value)

    def _add_container(self, name: str, value: Json, level: int) -> None:
        self._leaves += not value
        self.rows.append(Presence(name, _JSON, False))
        if level > self.caps.levels:
            self.flags.append("too_deep")
            return
        if isinstance(value, RepeatedNames):
            self.flags.append("duplicate_key")
        # Read one beyond the cap, so that the cap is noticed.
        for path, child in islice(_children(name, value), self.caps.leaves + 1):
            self._add_node(path, child, level)

    def _add_scalar(self, name: str, value: Json) -> None:
        if value is None:
            self.rows.append(Presence(name, _JSON, True))
        elif isinstance(value, bool):
            self.rows.append(Leaf(name, MetadataType.BOOL, "bool", value))
        elif type(value) is str:
            self._add_text(name, value)
        else:
            self._add_number(name, str(value), ())

    def _add_text(self, name: str, value: str) -> None:
        text, flag = read_string(value, self.caps)
        if text is None:
            self._add_unindexed(name, MetadataType.STRING, flag or "not_text")
            return
        self.rows.append(Leaf(name, MetadataType.STRING, "string", text))
        if is_number(text):
            self._add_number(name, text, ("from_text",))

    def _add_number(self, name: str, text: str, flags: tuple[str, ...]) -> None:
        kind = MetadataType.INT if _WHOLE.issuperset(text) else MetadataType.FLOAT
        value, flag = read_float(text, self.caps)
        if value is None:
            if flag == "not_finite":
                leaf = Leaf(name, kind, "string", text, (flag, "untyped"))
                self.rows.append(leaf)
            self._add_unindexed(name, kind, flag or "not_float")
        else:
            self.rows.append(Leaf(name, kind, "number", value, flags))

    def _add_unindexed(self, name: str, kind: MetadataType, flag: str) -> None:
        self.flags.append(flag)
        self.rows.append(Presence(name, kind.value, False, (flag,)))


def _children(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(value, list):
        return ((f"{name}[]", element) for element in value)
    return ((f"{name}.{key}", element) for key, element in list_members(value))
