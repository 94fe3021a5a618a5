"""The metadata keys that a filter names: the data of the key registry for its check."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen, Models, TypeSeen, types_of
from inference_store.inference.nearest import MOST_WARNED, nearest
from inference_store.query.properties import PROPERTIES

from .typed import Kind

UnknownKeys: TypeAlias = Literal["refuse", "empty", "accept"]
"""The treatment of a key that no model has: an error; no value; no value yet, and a warning."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_OFF_MAP: Final = "out_of_range"
_NO_VALUE: Final = frozenset({"null", "present"})
_NOT_COMPARED: Final = frozenset(
    {"number_too_large", "nul_character", "lone_surrogate", "too_deep"}
)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key. `rows`: the number of its values that can be compared as each kind."""

    name: str
    key: int | None = None
    rows: Mapping[Kind, int] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    """The names of the types seen or declared, for people."""
    others: Mapping[Kind, int] = field(default_factory=dict)
    """The number of inferences with a value that cannot be compared as this kind."""
    off_map: bool = False
    """For a coordinate: whether some inference has a value off the map."""
    only_stray_texts: bool = False
    """Whether all its texts are invalid values of another type: `n/a`, NaN."""
    several: bool = False
    """Whether it came several times with one inference."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds that it can be compared as; for a key that was never seen, all."""
        return frozenset(self.rows or (() if self.types else KINDS))

    @property
    def many(self) -> bool:
        """Check whether one inference may have several values of it."""
        return self.several or "[]" in self.name


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys, by name, that some requested model has; the nearest names for all others."""

    keys: Mapping[str, KnownKey] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def find_known_keys(
    connection: AsyncConnection, models: Models, names: Collection[str]
) -> KnownKeys:
    """Look up these keys. A key is unknown only if no model has it."""
    keys = await key_registry.find(connection, models, names)
    missing = sorted(set(names) - set(keys) - set(PROPERTIES))[:MOST_WARNED]
    all_names = await key_registry.all_names(connection, models) if missing else []
    near = {name: nearest(name, all_names) for name in missing}
    return KnownKeys({name: known_key(key) for name, key in keys.items()}, near)


def known_key(key: KeySeen) -> KnownKey:
    """Convert a key of the registry."""
    rows: dict[Kind, int] = {}
    for type_seen in key.types:
        kind = kind_of(type_seen)
        if kind is not None:
            rows[kind] = rows.get(kind, 0) + type_seen.count
    others = {kind: _others(kind, key.types) for kind in rows}
    off_map = any(type_seen.flag == _OFF_MAP for type_seen in key.types)
    stray = _only_stray_texts(key.types)
    types = tuple(types_of(key))
    return KnownKey(key.name, key.key, rows, types, others, off_map, stray, key.several)


def kind_of(type_seen: TypeSeen) -> Kind | None:
    """Return the kind that values of this type can be compared as, or None."""
    return None if type_seen.flag in _NO_VALUE | _NOT_COMPARED else type_seen.family


def _only_stray_texts(types: Iterable[TypeSeen]) -> bool:
    texts = [type_seen for type_seen in types if kind_of(type_seen) == "string"]
    return bool(texts) and all(text.flag.startswith("not_") for text in texts)


def _others(kind: Kind, types: Iterable[TypeSeen]) -> int:
    """Count values of other kinds; a text that is indexed as a number too is of both kinds."""
    counted = [type_seen for type_seen in types if type_seen.flag not in _NO_VALUE]
    elsewhere = sum(e.count for e in counted if kind_of(e) != kind and e.flag != FROM_TEXT)
    doubled = sum(e.count for e in counted if e.flag == FROM_TEXT) if kind == "number" else 0
    return max(0, elsewhere - doubled)


def declared(name: str, kinds: Iterable[Kind]) -> KnownKey:
    """Return a declared key, whether or not an inference has it."""
    rows = dict.fromkeys(kinds, 0)
    return KnownKey(name, None, rows, tuple(sorted(rows)))
