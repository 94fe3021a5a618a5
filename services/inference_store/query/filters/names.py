"""Resolves a name in a filter: a property, a metadata key, or a column of a prediction."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import (
    FROM_TEXT,
    NO_VALUE,
    KeySeen,
    Models,
    TypeSeen,
    types_of,
)
from inference_store.inference.errors import ImpossibleComparison, InvalidFilter, UnknownKey
from inference_store.inference.json_text import storable
from inference_store.inference.metadata import KEY_ALIASES
from inference_store.inference.nearest import (
    LONGEST,
    MOST_WARNED,
    counted,
    describe_alike,
    describe_nearest,
    nearest,
    shortened,
)
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.tree import Named, Node, Operation, Refusal, inside
from inference_store.query.properties import (
    ITEM_COLUMNS,
    PREDICTION_COLUMNS,
    PROPERTIES,
    Property,
)

from .typed import Item, Kind, Predicate


def impossible(node: Node, message: str, types: Sequence[str] = ()) -> Refusal:
    """Return the error for a comparison that no value can satisfy; `types`: the types seen."""
    return Refusal(message, node.at, types, error=ImpossibleComparison)


def meaningless(node: Node, message: str, suggestions: Sequence[str] = ()) -> Refusal:
    """Return the error for valid CQL2 that makes no sense here."""
    return Refusal(message, node.at, suggestions, error=InvalidFilter)


def _unknown_key(node: Node, name: str, near: Sequence[str]) -> Refusal:
    others = describe_alike(near)
    if len(name) > LONGEST:
        others = "one over the cap of length is listed by its beginning and '…', and not indexed"
    message = f"there is no metadata key {shortened(name)}; {others}"
    column = column_of(name)
    meant = meant_by(node) if column is None else f"prediction({column} …)"
    return Refusal(message, node.at, near, error=UnknownKey).hint(meant)


UnknownKeys: TypeAlias = Literal["refuse", "empty", "accept"]
"""The treatment of a key that no model has: an error; no value; no value yet, and a warning."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


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
    seen: KeySeen | None = field(default=None, compare=False)
    """Its entry in the registry."""

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
    of_several: bool = False
    """Whether several models are asked: a key of one of them hides no property."""


async def find_known_keys(
    connection: AsyncConnection, models: Models, names: Collection[str]
) -> KnownKeys:
    """Look up these keys. A key is unknown only if no model has it."""
    keys = await key_registry.find(connection, models, names)
    elements = {f"{name}[]" for name in names}
    missing = sorted(set(names) - set(keys) - set(PROPERTIES) - elements)[:MOST_WARNED]
    all_names = await key_registry.all_names(connection, models) if missing else []
    near = {name: nearest(name, all_names) for name in missing}
    known = {name: known_key(key) for name, key in keys.items()}
    return KnownKeys(known, near, not isinstance(models, int) and len(models) > 1)


def known_key(key: KeySeen) -> KnownKey:
    """Convert a key of the registry."""
    rows: dict[Kind, int] = {}
    for seen in key.types:
        if seen.kind is not None:
            rows[seen.kind] = rows.get(seen.kind, 0) + seen.count
    others = {kind: _count_others(kind, key.types) for kind in rows}
    off_map = any(seen.flag == "out_of_range" for seen in key.types)
    texts = [seen.flag for seen in key.types if seen.kind == "string"]
    stray = bool(texts) and all(flag.startswith("not_") for flag in texts)
    types = tuple(types_of(key))
    return KnownKey(key.name, key.key, rows, types, others, off_map, stray, key.several, key)


def _count_others(kind: Kind, types: Iterable[TypeSeen]) -> int:
    """Count values of other kinds; a text that is indexed as a number too is of both kinds."""
    counted = [seen for seen in types if seen.flag not in NO_VALUE]
    elsewhere = sum(e.count for e in counted if e.kind != kind and e.flag != FROM_TEXT)
    doubled = sum(e.count for e in counted if e.flag == FROM_TEXT) if kind == "number" else 0
    return max(0, elsewhere - doubled)


@dataclass(slots=True)
class FilterCheck:
    """One check."""

    known_keys: KnownKeys
    to_predicate: "Callable[[Node, FilterCheck], Predicate]"
    """The function that checks a condition, for functions with one as an argument."""
    unknown_keys: UnknownKeys = "refuse"
    is_saved: bool = False
    """Whether it was saved before: impossible values are no longer refused."""
    inside: Item | None = None
    """What the check is inside of, as in `prediction(…)`: there names are columns."""
    keys: dict[str, KnownKey] = field(default_factory=dict)
    """The keys in the filter."""
    warnings: dict[str, None] = field(default_factory=dict)

    def warn(self, sentence: str) -> None:
        """Add a warning, once however often it occurs."""
        self.warnings[sentence] = None

    def warn_of_others(self, key: KnownKey, kind: Kind) -> None:
        """Warn that some values of the key are of another kind."""
        others = key.others.get(kind, 0)
        if others:
            self.warn(
                f"The key {key.name!r} has been seen as {', '.join(key.types)}: it is compared "
                f"as a {kind}, and {counted(others, 'value is', 'values are')} not of that type."
            )


OWN, METADATA = "inference.", "metadata."
LABEL: Final = "label"
"""Alone, it is the label of predictions, and never a metadata key."""
ITEM_FUNCTIONS: Final[Mapping[str, Item]] = {
    **{"prediction": "prediction", "count_predictions": "prediction"},
    **{"truth": "truth", "count_truth": "truth"},
}
"""Functions with a condition on one item."""


def names_in(node: Node) -> set[str]:
    """Return the metadata keys that a tree may refer to, which are looked up before its check."""
    if isinstance(node, Named):
        key = key_of(node)
        keys = {key} if node.name in PROPERTIES else {key, f"{key}[]"}
        return set() if node.name.startswith(OWN) or not storable(key) else keys
    if isinstance(node, Operation) and node.op in ITEM_FUNCTIONS:
        return set()
    return set[str]().union(*map(names_in, inside(node)))


def key_of(node: Named) -> str:
    """Return the metadata key for a name, if it is one."""
    name = node.name.removeprefix(METADATA)
    return KEY_ALIASES.get(name, name)


def meaning(node: Named, checking: FilterCheck) -> Property | KnownKey:
    """Return the property or key that a name means. Raises UnknownKey, InvalidFilter."""
    if node.name.startswith(OWN):
        name = node.name.removeprefix(OWN)
        if name in PROPERTIES:
            return PROPERTIES[name]
        near, known_names = nearest(name, PROPERTIES), list(PROPERTIES)
        message = f"an inference has no property {name!r}; {describe_nearest(near, known_names)}"
        raise meaningless(node, message, near or known_names)
    if node.name.startswith(METADATA):
        return key(node, checking)
    entry = PROPERTIES.get(node.name)
    if node.name == LABEL:
        meant = [f"prediction({LABEL} …)", METADATA + LABEL]
        message = f"{LABEL!r} is the label of predictions: write {' or '.join(meant)}"
        raise meaningless(node, message, meant)
    if entry is None:
        return key(node, checking, may_be_property=True)
    if key_of(node) in checking.known_keys.keys:
        both = [OWN + node.name, METADATA + node.name]
        message = f"{node.name!r} is a property and a metadata key: write {' or '.join(both)}"
        if not checking.known_keys.of_several:
            raise meaningless(node, message, both)
        checking.warn(f"{message}. It is read as the property.")
    return entry


def elements(node: Named, known: KnownKeys) -> Named:
    """Return the name of the elements for the name of a JSON array; else the same name."""
    elements = Named(f"{node.name}[]", at=node.at)
    if node.name in {LABEL, *PROPERTIES} or key_of(elements) not in known.keys:
        return node
    whole = known.keys.get(key_of(node))
    return node if whole is not None and whole.rows else elements


def key(node: Named, checking: FilterCheck, *, may_be_property: bool = False) -> KnownKey:
    """Return the metadata key of a name. Raises UnknownKey, with the nearest names."""
    name = key_of(node)
    known_key = checking.known_keys.keys.get(name)
    if known_key is None:
        if checking.unknown_keys == "refuse":
            near = checking.known_keys.nearest.get(name, ())
            if may_be_property:
                near = nearest(name, [*near, *PROPERTIES]) or near
            raise _unknown_key(node, name, near)
        known_key = KnownKey(name)
    if known_key.key is None and checking.unknown_keys == "accept":
        checking.warn(f"No inference has the metadata key {name!r} yet.")
    checking.keys[name] = known_key
    return known_key


def column(node: Named, of: Item) -> Property:
    """Return the column of an item with this name. Raises InvalidFilter."""
    entry = ITEM_COLUMNS[of].get(node.name)
    if entry is None:
        columns, what = list(ITEM_COLUMNS[of]), _ITEMS[of]
        message = f"inside {of}(…) names are columns of {what} only, and {node.name!r}"
        raise meaningless(node, f"{message} is none; they are {', '.join(columns)}", columns)
    return entry


_ITEMS: Final[Mapping[Item, str]] = {
    **{"prediction": "a prediction", "truth": "an item of ground truth"}
}


def column_of(name: str) -> str | None:
    """Return the column of predictions that a name means, with or without `prediction.`."""
    column = name.removeprefix("predictions.").removeprefix("prediction.")
    return column if column in PREDICTION_COLUMNS else None
