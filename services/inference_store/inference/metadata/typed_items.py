"""Items become typed: an entry as it came, and the leaf or presence that is indexed."""

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
from .leaves import Walk
from .metadata_types import METADATA_TYPES, TYPE_NAMES, MetadataTypeEntry, type_named
from .reserved import COORDINATES

_STRING: Final = METADATA_TYPES["string"]
_INT: Final = METADATA_TYPES["int"]
_FLOAT: Final = METADATA_TYPES["float"]
_BOOL: Final = METADATA_TYPES["bool"]
_JSON: Final = METADATA_TYPES["json"]


@dataclass(slots=True)
class TypedItems:
    """What is made of one inference's items, in their order."""

    caps: MetadataCaps
    walk: Walk
    entries: list[Entry] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    presences: list[Presence] = field(default_factory=list)

    def add(self, name: str, item: Item) -> None:
        """Keep one item, and index it under `name`."""
        if not self._add_plain(name, item):
            self._add_any(name, item)

    def _add_plain(self, name: str, item: Item) -> bool:
        """The short way for what is as it should be, which nearly all is."""
        key, declared, value, section, flags = item
        kind = TYPE_NAMES.get(declared) if declared else None
        if kind is None or kind.family is None or type(value) is not str:
            return False
        parsed, flag = kind.parse(value, self.caps)
        if parsed is None or flag is not None or self._unfit(name):
            return False
        if name in COORDINATES and not _on_the_map(name, parsed):
            return False
        self.leaves.append(Leaf(name, kind.type, kind.family, parsed))
        self.entries.append(Entry(key, declared or "", value, section, flags))
        return True

    def _add_any(self, name: str, item: Item) -> None:
        key, declared, value, section, flags = item
        unfit = self._unfit(name)
        if unfit is not None:
            if unfit == "key_too_long":
                like, _ = _guessed(name, declared, value)
                self.walk.note_too_long(name, like.name, is_null=value is None)
            self.entries.append(kept(item, unfit))
            return
        kind = TYPE_NAMES.get(declared) if declared else None
        if kind is None:
            kind, remarks = _guessed(name, declared, value)
            flags += remarks
        if name in COORDINATES and kind.family != "number":
            flags += ("reserved_type",)
        if value is None:
            self.presences.append(Presence(name, kind.name, True, flags))
        elif kind is _JSON:
            flags += self._json(name, value)
        else:
            flags += self._scalar(name, kind, value)
        text = value if type(value) is str or value is None else write_json(value)
        self.entries.append(Entry(key, declared or "", text, section, flags))

    def _unfit(self, name: str) -> str | None:
        """Why a key cannot be indexed at all."""
        if len(self.entries) >= self.caps.keys:
            return "keys_capped"
        if len(name) > self.caps.key_characters:
            return "key_too_long"
        return None if name and storable(name) else "key_not_text"

    def _scalar(self, name: str, kind: MetadataTypeEntry, value: Json) -> tuple[str, ...]:
        text = value if type(value) is str else write_json(value)
        parsed, flag = kind.parse(text, self.caps)
        if kind is _STRING and text is not value and isinstance(value, (dict, list)):
            parsed, flag = None, "not_string"
        if parsed is None or kind.family is None:
            return self._unindexed(name, kind, text, flag or "")
        flags: tuple[str, ...] = (flag,) if flag else ()
        if name in COORDINATES and kind.family == "number" and not _on_the_map(name, parsed):
            flags += ("out_of_range",)
        self.leaves.append(Leaf(name, kind.type, kind.family, parsed, flags))
        return flags

    def _json(self, name: str, value: Json) -> tuple[str, ...]:
        if type(value) is str:
            try:
                return self.walk.take_apart(name, read_exactly(value))
            except TooDeep:
                self.presences.append(Presence(name, _JSON.name, False, ("too_deep",)))
                return ("too_deep",)
            except UnreadableJson:
                return self._unindexed(name, _JSON, value, "not_json")
        return self.walk.take_apart(name, value)

    def _unindexed(
        self, name: str, kind: MetadataTypeEntry, text: str, flag: str
    ) -> tuple[str, ...]:
        """Present, and no value of its type; where it is text at all, found as text."""
        flags: tuple[str, ...] = (flag,)
        if flag.startswith("not_"):
            if storable(text):
                self.leaves.append(Leaf(name, kind.type, "string", text, (flag, "untyped")))
            else:
                flags += ("nul_character" if "\0" in text else "lone_surrogate",)
        self.presences.append(Presence(name, kind.name, False, flags))
        return flags


def _on_the_map(name: str, value: Indexable) -> bool:
    return isinstance(value, Decimal) and abs(value) <= COORDINATES[name]


def kept(item: Item, *flags: str) -> Entry:
    """The entry of an item that is not indexed."""
    value = item.value
    text = value if type(value) is str or value is None else write_json(value)
    return Entry(item.key, item.type or "", text, item.section, (*item.flags, *flags))


def _guessed(
    name: str, declared: str | None, value: Json
) -> tuple[MetadataTypeEntry, tuple[str, ...]]:
    """The type where the declared name is none of the table's: that of the JSON value."""
    named = type_named(declared) if declared else None
    if named is not None:
        return named, ()
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
