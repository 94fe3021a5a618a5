"""Metadata as columns: one for each key and type, and one for what fits none of them, exactly.

The columns of an export are fixed before its first row, from the key registry. What they cannot
hold as it came stands in `metadata_rest`, as JSON, and nothing is lost: keys that were new since
then, values that do not fit their type, integers beyond 64 bits, digits beyond a double, times
finer than a microsecond, a key's earlier values if it occurs twice, nulls.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from inference_store.index.key_registry import FROM_TEXT, KEY_TOO_LONG, KeySeen
from inference_store.inference.metadata import (
    KEY_ALIASES,
    METADATA_TYPES,
    MetadataCaps,
    MetadataType,
    read_rows,
    type_named,
)
from inference_store.inference.metadata.values import (
    read_bool,
    read_float,
    read_int,
    read_timestamp,
)

from .kinds import Column, Kind

REST: Final = "metadata_rest"
MOST_KEYS: Final = 1000
"""Keys with columns of their own; the values of the others are in the rest."""
_CAPS: Final = MetadataCaps()
_LEAST_INT64, _MOST_INT64 = -(2**63), 2**63 - 1
_PLAIN_DIGITS: Final = 15  # a double holds so many exactly
_PLAIN_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3}|\.\d{6})?Z", re.ASCII)
_FINER: Final = re.compile(r"\.\d{7}")  # than a microsecond
StoredEntry: TypeAlias = Mapping[str, Any]
Fit: TypeAlias = tuple[Any, bool]
"""A value as its column has it, or None; and whether it is exactly what came."""


def _fit_text(text: str) -> Fit:
    return (text, True) if text.isascii() or _is_unicode(text) else (None, False)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _fit_integer(text: str) -> Fit:
    if len(text) <= 18 and text.isascii() and text.isdecimal():
        return int(text), True
    value, _ = read_int(text, _CAPS)
    if value is None or not _LEAST_INT64 <= value <= _MOST_INT64:
        return None, False
    return int(value), True


def _fit_float(text: str) -> Fit:
    if len(text) <= _PLAIN_DIGITS and not text.strip("-.0123456789"):
        try:
            return float(text), True
        except ValueError:
            return None, False
    exact, _ = read_float(text, _CAPS)
    if exact is None:
        return None, False
    value = float(exact)
    return value, Decimal(repr(value)) == exact


def _fit_bool(text: str) -> Fit:
    value, _ = read_bool(text, _CAPS)
    return value, value is not None


def _fit_time(text: str) -> Fit:
    if _PLAIN_TIME.fullmatch(text):
        try:
            return datetime.fromisoformat(text), True
        except ValueError:  # no such day or hour
            return None, False
    value, _ = read_timestamp(text, _CAPS)
    return value, value is not None and _FINER.search(text) is None


_FITS: Final[Mapping[MetadataType, tuple[Kind, Callable[[str], Fit]]]] = MappingProxyType(
    {
        MetadataType.STRING: (Kind.TEXT, _fit_text),
        MetadataType.INT: (Kind.INTEGER, _fit_integer),
        MetadataType.FLOAT: (Kind.FLOAT, _fit_float),
        MetadataType.BOOL: (Kind.BOOL, _fit_bool),
        MetadataType.TIMESTAMP: (Kind.TIME, _fit_time),
        MetadataType.JSON: (Kind.TEXT, _fit_text),
    }
)


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """The columns of metadata. `owners`: by key and type as it may be spelt, the position of the
    column, and what fits a text into it."""

    columns: tuple[Column, ...]
    owners: Mapping[tuple[str, str], tuple[int, Callable[[str], Fit]]]
    keys: Collection[str] | None
    """Keys that are read; None: all, and those without a column are in the rest."""

    def read(self, stored: Sequence[bytes]) -> list[list[Any]]:
        """Return the values of each column, for the stored metadata of each inference."""
        values: list[list[Any]] = [[None] * len(stored) for _ in self.columns]
        for number, entries in enumerate(stored):
            rest = self._place(read_rows(entries), number, values)
            if rest:
                values[-1][number] = json.dumps([_describe(entry) for entry in rest])
        return values

    def _place(
        self, entries: Iterable[StoredEntry], number: int, values: list[list[Any]]
    ) -> list[StoredEntry]:
        """Put the entries of an inference into the columns; return what is not exactly in them."""
        rest: list[StoredEntry] = []
        placed: dict[int, StoredEntry] = {}
        for entry in entries:
            owner = self.owners.get((entry["key"], entry["type"])) or self._find_owner(entry)
            text = entry["value"]
            if owner is None or text is None:
                if self.keys is None or _read_key(entry) in self.keys:
                    rest.append(entry)
                continue
            position, fit = owner
            values[position][number], is_exact = fit(text)
            if position in placed:
                rest.append(placed.pop(position))
            if is_exact:
                placed[position] = entry
            else:
                rest.append(entry)
        return rest

    def _find_owner(self, entry: StoredEntry) -> tuple[int, Callable[[str], Fit]] | None:
        """Return the owner of a type that is spelt in an uncommon way."""
        return self.owners.get((_read_key(entry), _read_type(entry["type"]).value))


def choose_columns(keys: Sequence[KeySeen], chosen: Collection[str] | None) -> MetadataColumns:
    """Return the columns for the keys of the registry; `chosen`: these alone (None: all)."""
    kinds_by_key = _list_kinds(keys)
    names = [name for name in kinds_by_key if _is_chosen(name, chosen)][:MOST_KEYS]
    columns: dict[str, Column] = {}
    owners: dict[tuple[str, str], tuple[int, Callable[[str], Fit]]] = {}
    for name in names:
        kinds = kinds_by_key[name]
        for kind in kinds:
            column = f"metadata.{name}" if len(kinds) == 1 else f"metadata.{name}:{kind}"
            if column in columns:  # the key `a:int` beside the key `a` of two types
                continue
            column_kind, fit = _FITS[kind]
            for spelling in _list_spellings(kind):
                owners[name, spelling] = (len(columns), fit)
            columns[column] = Column(column, column_kind)
    rest = Column(REST, Kind.TEXT)
    return MetadataColumns((*columns.values(), rest), owners, None if chosen is None else names)


def _list_spellings(kind: MetadataType) -> Sequence[str]:
    """Return the names of a type; a value without one is text."""
    accepted = METADATA_TYPES[kind].accepted
    return (*accepted, "") if kind is MetadataType.STRING else accepted


def _is_chosen(name: str, chosen: Collection[str] | None) -> bool:
    """Return whether a key is chosen: by its name, or by a path into its values."""
    paths = (f"{name}.", f"{name}[")
    return chosen is None or any(path == name or path.startswith(paths) for path in chosen)


def _list_kinds(keys: Sequence[KeySeen]) -> dict[str, list[MetadataType]]:
    """Return the types of each key that entries came with: no paths into JSON values."""
    kinds_by_key: dict[str, list[MetadataType]] = {}
    roots: set[str] = set()
    for key in sorted(keys, key=lambda key: len(key.name)):
        if _list_roots(key.name) & roots:
            continue
        kinds = sorted({_read_type(seen.type) for seen in key.types if _is_of_type(seen.flag)})
        if kinds:
            kinds_by_key[key.name] = kinds
        if any(_read_type(seen.type) is MetadataType.JSON for seen in key.types):
            roots.add(key.name)
    return dict(sorted(kinds_by_key.items()))


def _is_of_type(flag: str) -> bool:
    """Return whether values with this flag are of their declared type."""
    return not flag.startswith("not_") and flag not in {FROM_TEXT, KEY_TOO_LONG}


def _list_roots(name: str) -> set[str]:
    """Return the names that a path may begin with: of `a.b[].c` these are `a`, `a.b`, `a.b[]`."""
    return {name[:end] for end, letter in enumerate(name) if letter in ".["}


def _read_type(name: str) -> MetadataType:
    """Return the canonical type; a value without a known one is text."""
    entry = type_named(name) if name else None
    return MetadataType.STRING if entry is None else entry.type


def _read_key(entry: StoredEntry) -> str:
    key: str = entry["key"]
    return KEY_ALIASES.get(key, key)


def _describe(entry: StoredEntry) -> dict[str, Any]:
    return {name: entry[name] for name in ("key", "type", "value")}
