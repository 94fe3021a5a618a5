"""Splits JSON values: leaves by path, presences of all containers, and flags of what was left
out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from inference_store.inference.json_text import (
    Json,
    RepeatedNames,
    is_number,
    list_members,
    storable,
)

from .caps import MetadataCaps
from .entry import Leaf, Presence
from .metadata_types import MetadataType
from .values import read_float, read_string

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
