"""Resolves `sort`: `-received_at`, `frame_number`, `-metadata.width`, `inference.width`,
`tag:string`; or a distance: `distance(location, POINT(13.4 52.5))`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen, Models, types_of
from inference_store.inference.errors import (
    Fault,
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.inference.metadata import Family, type_named
from inference_store.inference.nearest import nearest

from .conditions import read_names
from .cql2 import parse_text
from .cql2.tree import Node, Operation
from .filters import operands
from .filters.check import to_predicate
from .filters.names import (
    METADATA,
    OWN,
    FilterCheck,
    KnownKeys,
    find_known_keys,
    meaningless,
    names_in,
)
from .filters.typed import Distance, Missing
from .order import SORTABLE, TIME, UNORDERED, ByDistance, ByKey, ByProperty, Order
from .properties import PROPERTIES

EXAMPLE: Final = "distance(location, POINT(13.4 52.5))"
PATH: Final = "sort"
_CALL: Final = re.compile(r"\s*distance\s*\(", re.IGNORECASE)


def is_distance(text: str) -> bool:
    """Check whether a text is written as a distance, not as a name."""
    return _CALL.match(text) is not None


def parse_distance(text: str) -> Node:
    """Return the tree of a text that `is_distance`. Raises InvalidFilter, NotKept."""
    return parse_text(text, path=PATH, takes="number")


def distance_of(node: Node, text: str, known: KnownKeys) -> Distance:
    """Return the distance of a tree, as in a filter; `known`: the keys that it may name.

    Raises InvalidFilter, UnknownKey.
    """
    checking = FilterCheck(known, to_predicate, text)
    if isinstance(node, Operation) and node.op == "distance":
        distance = operands.value(node, "number", checking)
        assert isinstance(distance, Distance)
        return distance
    message = f"a page is sorted by a name or by a distance alone, as in {EXAMPLE}"
    raise meaningless(node, text, message, (EXAMPLE,))


NEWEST_FIRST: Final = "-received_at"
# A key of 256 characters, with a prefix and a suffix.
MOST_SORT_CHARACTERS = 300
PATTERN: Final = r"^-?(inference\.|metadata\.)?.+$"
"""The values of `sort`, as a regular expression of ECMA 262."""
_PREFERRED: Final[tuple[Family, ...]] = ("number", "timestamp", "string", "bool")


@dataclass(frozen=True, slots=True)
class Sort:
    """A page's order. `order` None: by time."""

    descending: bool
    order: Order | None = None
    warnings: tuple[str, ...] = ()


async def resolve_sort(
    connection: AsyncConnection, models: Models, sort: str, *, kind: Family | None = None
) -> Sort:
    """Resolve the order of that name; `kind`: the family that a key was sorted by on the page
    before.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name in TIME or name in {OWN + property_name for property_name in TIME}:
        return Sort(descending)
    if is_distance(name):
        return Sort(descending, await _make_distance_order(connection, models, sort, descending))
    property_ = "" if name.startswith(METADATA) else name.removeprefix(OWN)
    key, typed = name.removeprefix(METADATA), None
    keys = await _find_key(connection, models, key)
    if key not in keys and ":" in key and (entry := type_named(key.rpartition(":")[2])):
        key, typed = key.rpartition(":")[0], entry.family
    stored = None if name.startswith(OWN) else keys.get(key)
    if property_ in PROPERTIES:
        if stored is not None and not name.startswith(METADATA):
            raise _refuse_ambiguous(key)
        if property_ in UNORDERED:
            raise _refuse_unordered(property_)
        return Sort(descending, ByProperty(PROPERTIES[property_], descending))
    if stored is None:
        raise await _refuse_unknown(connection, models, key)
    family, warnings = _choose_family(stored, typed, kind)
    return Sort(descending, ByKey(stored.key, family, stored.many, descending), warnings)


async def _make_distance_order(
    connection: AsyncConnection, models: Models, sort: str, descending: bool
) -> ByDistance:
    # a blank instead of the sign, so that an error points at the right place of `sort`
    text = f" {sort[1:]}" if descending else sort
    try:
        node = parse_distance(text)
        distance = distance_of(
            node, text, await find_known_keys(connection, models, names_in(node))
        )
    except InvalidFilter as refused:  # it is no filter
        raise Invalid(refused.detail, faults=refused.faults) from None
    return ByDistance(distance, await read_names(connection, Missing(distance)), descending)


async def _find_key(connection: AsyncConnection, models: Models, key: str) -> Mapping[str, KeySeen]:
    return await key_registry.find(connection, models, {key, key.rpartition(":")[0] or key})


def _choose_family(
    key: KeySeen, typed: Family | None, kind: Family | None
) -> tuple[Family, tuple[str, ...]]:
    if typed is not None:
        if typed not in key.families:
            raise _refuse_impossible(key, typed)
        return typed, ()
    # a text that spells a number was sent as a text
    sent = {type_seen.family for type_seen in key.types if type_seen.flag != FROM_TEXT}
    families = [family for family in _PREFERRED if family in sent] or [
        family for family in _PREFERRED if family in key.families
    ]
    if not families:
        raise _refuse_impossible(key, None)
    chosen = kind if kind in key.families and kind is not None else families[0]
    others = [family for family in families if family != chosen]
    if not others:
        return chosen, ()
    sentence = (
        f"The key {key.name!r} has been seen as {', '.join(types_of(key))}: its {chosen} values"
    )
    instead = " or ".join(f"`{key.name}:{other}`" for other in others)
    return chosen, (f"{sentence} are sorted, what has none comes last. Sort by {instead} instead.",)


def _refuse_ambiguous(name: str) -> Invalid:
    suggestions = [OWN + name, METADATA + name]
    message = "it is a property of the inference and a metadata key: say which"
    return Invalid(f"sort: {name!r} is ambiguous.", faults=[Fault("sort", message, suggestions)])


def _refuse_unordered(name: str) -> Invalid:
    detail = f"sort: {name!r} has no order; sort by {EXAMPLE}, or by one of its coordinates."
    suggestions = [EXAMPLE, "latitude", "longitude"]
    return Invalid(detail, faults=[Fault("sort", "it has no order", suggestions)])


def _refuse_impossible(key: KeySeen, typed: Family | None) -> ImpossibleComparison:
    types = types_of(key)
    how = "sorted" if typed is None else f"sorted as {typed}"
    message = f"the key has been seen as {', '.join(types)}"
    detail = f"The key {key.name!r} cannot be {how}: {message}."
    return ImpossibleComparison(detail, faults=[Fault("sort", message, types)])


async def _refuse_unknown(connection: AsyncConnection, models: Models, name: str) -> UnknownKey:
    keys: Sequence[str] = await key_registry.nearest(connection, models, name)
    bare = name.removeprefix(OWN)
    names = [*dict.fromkeys([*keys, *SORTABLE])]
    near = [EXAMPLE] if bare == "distance" else nearest(bare, names)
    detail = f"sort: there is no property and no metadata key {name!r}."
    suggestions = f" The nearest are {', '.join(near)}." if near else ""
    suggestions += f" The properties are {', '.join(SORTABLE)}."
    faults = [Fault("sort", "unknown name", list(dict.fromkeys((*near, *SORTABLE))))]
    return UnknownKey(detail + suggestions, faults=faults)
