"""The metadata keys that a filter names: what of the key registry its check needs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen, Models, TypeSeen, types_of
from inference_store.inference.nearest import MOST_TOLD, nearest
from inference_store.query.properties import PROPERTIES

from .typed import Kind

UnknownKeys: TypeAlias = Literal["refuse", "empty", "accept"]
"""What becomes of a key that nobody has: an error; no value; no value yet, and a warning."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_OFF_MAP: Final = "out_of_range"
_NO_VALUE: Final = frozenset({"null", "present"})
_NOT_COMPARED: Final = frozenset(
    {"number_too_large", "nul_character", "lone_surrogate", "too_deep"}
)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key. `rows`: how many of its values can be compared as each kind."""

    name: str
    key: int | None = None
    rows: Mapping[Kind, int] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    """The names of the types seen or declared, for people."""
    others: Mapping[Kind, int] = field(default_factory=dict)
    """How many inferences have a value that cannot be compared as this kind."""
    off_map: bool = False
    """Of a coordinate: whether some inference has a value that no place has."""
    only_stray_texts: bool = False
    """Whether all its texts are values that are none of their type: `n/a`, NaN."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """What it can be compared as; of a key that nobody has seen, anything."""
        return frozenset(self.rows or (() if self.types else KINDS))

    @property
    def many(self) -> bool:
        """Whether one inference may have several values of it."""
        return "[]" in self.name


@dataclass(frozen=True, slots=True)
class Known:
    """The keys, by name, that some model in request has; the nearest names of all others."""

    keys: Mapping[str, KnownKey] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def known(connection: AsyncConnection, models: Models, names: Collection[str]) -> Known:
    """What the models have of these keys. A key is unknown only if it is unknown to all."""
    seen = await key_registry.find(connection, models, names)
    missing = sorted(set(names) - set(seen) - set(PROPERTIES))[:MOST_TOLD]
    there = await key_registry.all_names(connection, models) if missing else []
    near = {name: nearest(name, there) for name in missing}
    return Known({name: known_key(each) for name, each in seen.items()}, near)


def known_key(seen: KeySeen) -> KnownKey:
    """A key of the registry, by kinds."""
    rows: dict[Kind, int] = {}
    for each in seen.types:
        kind = kind_of(each)
        if kind is not None:
            rows[kind] = rows.get(kind, 0) + each.count
    others = {kind: _others(kind, seen.types) for kind in rows}
    off_map = any(each.flag == _OFF_MAP for each in seen.types)
    stray = _only_stray_texts(seen.types)
    return KnownKey(seen.name, seen.key, rows, tuple(types_of(seen)), others, off_map, stray)


def kind_of(seen: TypeSeen) -> Kind | None:
    """What values seen so can be compared as."""
    return None if seen.flag in _NO_VALUE | _NOT_COMPARED else seen.family


def _only_stray_texts(types: Iterable[TypeSeen]) -> bool:
    texts = [each for each in types if kind_of(each) == "string"]
    return bool(texts) and all(each.flag.startswith("not_") for each in texts)


def _others(kind: Kind, types: Iterable[TypeSeen]) -> int:
    """Values of another kind; a text that was indexed as a number too is one of both."""
    counted = [each for each in types if each.flag not in _NO_VALUE]
    elsewhere = sum(e.count for e in counted if kind_of(e) != kind and e.flag != FROM_TEXT)
    doubled = sum(e.count for e in counted if e.flag == FROM_TEXT) if kind == "number" else 0
    return max(0, elsewhere - doubled)


def declared(name: str, kinds: Iterable[Kind]) -> KnownKey:
    """A key as it was declared, whether or not anything has it."""
    rows = dict.fromkeys(kinds, 0)
    return KnownKey(name, None, rows, tuple(sorted(rows)))
