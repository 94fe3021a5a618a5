"""Gives items a type: an unchanged entry, and the leaf or presence that is indexed."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import (
    Json,
    TooDeep,
    UnreadableJson,
    is_json_number,
    read_exactly,
    storable,
    write_json,
)

from .caps import MetadataCaps
from .entry import Entry, Indexable, Leaf, Presence
from .envelope import Item
from .leaves import JsonSplitter
from .metadata_types import METADATA_TYPES, TYPE_NAMES, MetadataTypeEntry, type_named
from .reserved import COORDINATES

_STRING: Final = METADATA_TYPES["string"]
_INT: Final = METADATA_TYPES["int"]
_FLOAT: Final = METADATA_TYPES["float"]
_BOOL: Final = METADATA_TYPES["bool"]
_JSON: Final = METADATA_TYPES["json"]


@dataclass(slots=True)
class TypedItems:
    """The entries of one inference's items, in order, with their leaves and presences."""

    caps: MetadataCaps
    splitter: JsonSplitter
    entries: list[Entry] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    presences: list[Presence] = field(default_factory=list)

    def add(self, name: str, item: Item) -> None:
        """Keep one item, and index it under `name`."""
        if not self._add_plain(name, item):
            self._add_any(name, item)

    def _add_plain(self, name: str, item: Item) -> bool:
        """Add a correct item in the short way, as nearly all are; return whether it is one."""
        key, declared, value, section, flags = item
        kind = TYPE_NAMES.get(declared) if declared else None
        if kind is None or kind.family is None or type(value) is not str:
            return False
        parsed, flag = kind.parse(value, self.caps)
        if parsed is None or flag is not None or self._find_obstacle(name):
            return False
        if name in COORDINATES and not _is_on_the_map(name, parsed):
            return False
        self.leaves.append(Leaf(name, kind.type, kind.family, parsed))
        self.entries.append(Entry(key, declared or "", value, section, flags))
        return True

    def _add_any(self, name: str, item: Item) -> None:
        key, declared, value, section, flags = item
        unfit = self._find_obstacle(name)
        if unfit is not None:
            if unfit == "key_too_long":
                like, _ = _guess_type(name, declared, value)
                self.splitter.note_too_long(name, like.name, is_null=value is None)
            self.entries.append(entry_of(item, unfit))
            return
        kind = TYPE_NAMES.get(declared) if declared else None
        if kind is None:
            kind, remarks = _guess_type(name, declared, value)
            flags += remarks
        if name in COORDINATES and kind.family != "number":
            flags += ("reserved_type",)
        if value is None:
            self.presences.append(Presence(name, kind.name, True, flags))
        elif kind is _JSON:
            flags += self._add_json(name, value)
        else:
            flags += self._add_scalar(name, kind, value)
        text = value if type(value) is str or value is None else write_json(value)
        self.entries.append(Entry(key, declared or "", text, section, flags))

    def _find_obstacle(self, name: str) -> str | None:
        """Return why a key cannot be indexed; None if it can."""
        if len(self.entries) >= self.caps.keys:
            return "keys_capped"
        if len(name) > self.caps.key_characters:
            return "key_too_long"
        return None if name and storable(name) else "key_not_text"

    def _add_scalar(self, name: str, kind: MetadataTypeEntry, value: Json) -> tuple[str, ...]:
        text = value if type(value) is str else write_json(value)
        parsed, flag = kind.parse(text, self.caps)
        if kind is _STRING and text is not value and isinstance(value, (dict, list)):
            parsed, flag = None, "not_string"
        if parsed is None or kind.family is None:
            return self._add_unindexed(name, kind, text, flag or "")
        flags: tuple[str, ...] = (flag,) if flag else ()
        if name in COORDINATES and kind.family == "number" and not _is_on_the_map(name, parsed):
            flags += ("out_of_range",)
        self.leaves.append(Leaf(name, kind.type, kind.family, parsed, flags))
        return flags

    def _add_json(self, name: str, value: Json) -> tuple[str, ...]:
        if type(value) is str:
            try:
                return self.splitter.split(name, read_exactly(value))
            except TooDeep:
                self.presences.append(Presence(name, _JSON.name, False, ("too_deep",)))
                return ("too_deep",)
            except UnreadableJson:
                return self._add_unindexed(name, _JSON, value, "not_json")
        return self.splitter.split(name, value)

    def _add_unindexed(
        self, name: str, kind: MetadataTypeEntry, text: str, flag: str
    ) -> tuple[str, ...]:
        """Add a presence for a value that is not of its type; index a text as text."""
        flags: tuple[str, ...] = (flag,)
        if flag.startswith("not_"):
            if storable(text):
                self.leaves.append(Leaf(name, kind.type, "string", text, (flag, "untyped")))
            else:
                flags += ("nul_character" if "\0" in text else "lone_surrogate",)
        self.presences.append(Presence(name, kind.name, False, flags))
        return flags


def _is_on_the_map(name: str, value: Indexable) -> bool:
    return isinstance(value, Decimal) and abs(value) <= COORDINATES[name]


def entry_of(item: Item, *flags: str) -> Entry:
    """Return the entry of an item that is not indexed."""
    value = item.value
    text = value if type(value) is str or value is None else write_json(value)
    return Entry(item.key, item.type or "", text, item.section, (*item.flags, *flags))


def _guess_type(
    name: str, declared: str | None, value: Json
) -> tuple[MetadataTypeEntry, tuple[str, ...]]:
    """Return the type of a value, by its JSON if the table does not have the declared name."""
    declared_type = type_named(declared) if declared else None
    if declared_type is not None:
        return declared_type, ()
    remark = () if declared is None else ("unknown_type",) if declared else ("no_type",)
    if name in COORDINATES and not isinstance(value, (dict, list, bool)):
        return _FLOAT, remark
    return _type_of(value), remark


def _type_of(value: Json) -> MetadataTypeEntry:
    if isinstance(value, bool):
        return _BOOL
    if is_json_number(value):
        return _INT if str(value).lstrip("-").isdecimal() else _FLOAT
    return _JSON if isinstance(value, (dict, list)) else _STRING
