"""Resolves `sort`: `-received_at`, `frame_number`, `-metadata.width`, `inference.width`,
`tag:string`; or a distance: `distance(location, POINT(13.4 52.5))`."""

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
from inference_store.query.filters.distances import (
    EXAMPLE,
    distance_of,
    is_distance,
    parse_distance,
)
from inference_store.query.filters.known import known
from inference_store.query.filters.names import names_in
from inference_store.query.filters.typed import Missing
from inference_store.query.properties import PROPERTIES

from .by_distance import ByDistance
from .conditions import read_names
from .order import SORTABLE, TIME, UNORDERED, ByKey, ByProperty, Order

NEWEST_FIRST: Final = "-received_at"
# A key of 256 characters, with what may stand around it.
MOST_CHARACTERS = 300
PATTERN: Final = r"^-?(inference\.|metadata\.)?.+$"
"""What `sort` may be, as a regular expression of ECMA 262."""
_PREFERRED: Final[tuple[Family, ...]] = ("number", "timestamp", "string", "bool")
_METADATA, _INFERENCE = "metadata.", "inference."


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
    if name in TIME or name in {_INFERENCE + each for each in TIME}:
        return Sort(descending)
    if is_distance(name):
        return Sort(descending, await _make_distance_order(connection, models, sort, descending))
    property_ = "" if name.startswith(_METADATA) else name.removeprefix(_INFERENCE)
    key, typed = name.removeprefix(_METADATA), None
    seen = await _find_key(connection, models, key)
    if key not in seen and ":" in key and (entry := type_named(key.rpartition(":")[2])):
        key, typed = key.rpartition(":")[0], entry.family
    found = None if name.startswith(_INFERENCE) else seen.get(key)
    if property_ in PROPERTIES:
        if found is not None and not name.startswith(_METADATA):
            raise _refuse_ambiguous(key)
        if property_ in UNORDERED:
            raise _refuse_unordered(property_)
        return Sort(descending, ByProperty(PROPERTIES[property_], descending))
    if found is None:
        raise await _refuse_unknown(connection, models, key)
    family, warnings = _choose_family(found, typed, kind)
    return Sort(descending, ByKey(found.key, family, found.many, descending), warnings)


async def _make_distance_order(
    connection: AsyncConnection, models: Models, sort: str, descending: bool
) -> ByDistance:
    # a blank in the place of the sign, so that the places in a refusal are those of `sort`
    text = f" {sort[1:]}" if descending else sort
    try:
        node = parse_distance(text)
        found = distance_of(node, text, await known(connection, models, names_in(node)))
    except InvalidFilter as refused:  # it is no filter
        raise Invalid(refused.detail, faults=refused.faults) from None
    return ByDistance(found, await read_names(connection, Missing(found)), descending)


async def _find_key(connection: AsyncConnection, models: Models, key: str) -> Mapping[str, KeySeen]:
    """Return the key as it is written, and as it is before a `:type`."""
    return await key_registry.find(connection, models, {key, key.rpartition(":")[0] or key})


def _choose_family(
    seen: KeySeen, typed: Family | None, kind: Family | None
) -> tuple[Family, tuple[str, ...]]:
    """Return the family that the key's values are sorted by, and a warning about the others."""
    if typed is not None:
        if typed not in seen.families:
            raise _refuse_impossible(seen, typed)
        return typed, ()
    # a text that is a number as well was sent as a text
    sent = {each.family for each in seen.types if each.flag != FROM_TEXT}
    families = [each for each in _PREFERRED if each in sent] or [
        each for each in _PREFERRED if each in seen.families
    ]
    if not families:
        raise _refuse_impossible(seen, None)
    chosen = kind if kind in seen.families and kind is not None else families[0]
    others = [each for each in families if each != chosen]
    if not others:
        return chosen, ()
    said = (
        f"The key {seen.name!r} has been seen as {', '.join(types_of(seen))}: its {chosen} values"
    )
    instead = " or ".join(f"`{seen.name}:{each}`" for each in others)
    return chosen, (f"{said} are sorted, what has none comes last. Sort by {instead} instead.",)


def _refuse_ambiguous(name: str) -> Invalid:
    known = [_INFERENCE + name, _METADATA + name]
    message = "it is a property of the inference and a metadata key: say which"
    return Invalid(f"sort: {name!r} is ambiguous.", faults=[Fault("sort", message, known)])


def _refuse_unordered(name: str) -> Invalid:
    detail = f"sort: {name!r} has no order; sort by {EXAMPLE}, or by one of its coordinates."
    known = [EXAMPLE, "latitude", "longitude"]
    return Invalid(detail, faults=[Fault("sort", "it has no order", known)])


def _refuse_impossible(seen: KeySeen, typed: Family | None) -> ImpossibleComparison:
    types = types_of(seen)
    how = "sorted" if typed is None else f"sorted as {typed}"
    message = f"the key has been seen as {', '.join(types)}"
    detail = f"The key {seen.name!r} cannot be {how}: {message}."
    return ImpossibleComparison(detail, faults=[Fault("sort", message, types)])


async def _refuse_unknown(connection: AsyncConnection, models: Models, name: str) -> UnknownKey:
    """Refuse a name that is neither a key nor a property, with the nearest of both."""
    keys: Sequence[str] = await key_registry.nearest(connection, models, name)
    bare = name.removeprefix(_INFERENCE)
    names = [*dict.fromkeys([*keys, *SORTABLE])]
    near = [EXAMPLE] if bare == "distance" else nearest(bare, names)
    detail = f"sort: there is no property and no metadata key {name!r}."
    said = f" The nearest are {', '.join(near)}." if near else ""
    said += f" The properties are {', '.join(SORTABLE)}."
    faults = [Fault("sort", "unknown name", list(dict.fromkeys((*near, *SORTABLE))))]
    return UnknownKey(detail + said, faults=faults)
