"""Orders other than time: by the values of a metadata key, by a property, or by distance.

An inference without a value comes last in both directions. Equal values are sorted by uid, the
newest first if the order is descending. A uid is made from the model's id as well: two models have
the same one only by a collision of 62-bit hashes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    and_,
    false,
    func,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen, Models, types_of
from inference_store.index.tables import SIDE_TABLES, inference, inference_alias, prediction
from inference_store.inference.errors import (
    Fault,
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.inference.metadata import COORDINATES, Family, type_named
from inference_store.inference.nearest import nearest, suggest
from inference_store.query.conditions import read_names
from inference_store.query.conditions.combination import TYPES, Combination, Names
from inference_store.query.conditions.condition import Condition, Uids
from inference_store.query.conditions.sides import compute_metres
from inference_store.query.cql2 import parse_text
from inference_store.query.cql2.tree import Operation, error_of
from inference_store.query.deadline import ScanRange, bind_one
from inference_store.query.filters.check import check_value
from inference_store.query.filters.names import (
    LABEL,
    METADATA,
    OWN,
    find_known_keys,
    meaningless,
    names_in,
)
from inference_store.query.filters.typed import Distance, Missing
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property


@dataclass(frozen=True, slots=True)
class Rows:
    """The values in a range: one for each inference, never NULL."""

    value: ColumnElement[Any]
    uid: ColumnElement[Any]
    where: tuple[ColumnElement[bool], ...]


@dataclass(frozen=True, slots=True)
class ByDistance:
    """By metres from the location to a point, as `distance()` of a filter computes them.

    `names`: the integers of the coordinates. An inference without a location has no value.
    """

    to: Distance
    names: Names
    descending: bool
    kind: ClassVar[Family] = "number"
    is_scannable: ClassVar[bool] = False
    always: ClassVar[bool] = False

    @property
    def type(self) -> TypeEngine[Any]:
        """The SQL type of its values."""
        return Double()

    def rows(self, scan_range: ScanRange) -> Rows:
        """Return the range's values."""
        if not set(COORDINATES) <= set(self.names.coordinates):
            # any double: no row is read, and a constant orders nothing
            row = inference.alias()
            return Rows(row.c.top_score, row.c.uid, (false(),))
        combination = Combination(scan_range, self.names)
        value = compute_metres(self.to, combination).double
        assert combination.uid is not None, "a coordinate leads"
        return Rows(value, combination.uid, tuple(combination.where))


# Properties are sorted by this many of their first characters.
MOST_CHARACTERS = 256
# Their columns hold no longer values, and have an index in their order.
_INDEXED = frozenset({"inference_id", "data_hash"})
_ALWAYS = frozenset({"model_id", "inference_ids"})


@dataclass(frozen=True, slots=True)
class ByKey:
    """By a metadata key's values of one family.

    Several values of an inference are sorted by the least one, or by the greatest if descending. A
    text over 512 bytes is sorted by its beginning and a hash, which the index has.
    """

    key: int
    kind: Family
    many: bool
    descending: bool
    # its index has the values in order
    is_scannable: ClassVar[bool] = True
    always: ClassVar[bool] = False

    @property
    def type(self) -> TypeEngine[Any]:
        return TYPES[self.kind]

    def rows(self, scan_range: ScanRange) -> Rows:
        table = SIDE_TABLES[self.kind].alias()
        where = [scan_range.of(table), table.c.key == self.key]
        if self.many:
            other = SIDE_TABLES[self.kind].alias()
            before = other.c.value > table.c.value
            if not self.descending:
                before = other.c.value < table.c.value
            same = (scan_range.of(other), other.c.key == self.key, other.c.uid == table.c.uid)
            where.append(~select(other.c.uid).where(*same, before).exists())
        return Rows(table.c.value, table.c.uid, tuple(where))

    def anti_join(self, scan_range: ScanRange) -> Uids:
        """Select all inferences of the range that have no such value."""
        table = SIDE_TABLES[self.kind]
        have = select(table.c.uid).where(scan_range.of(table), table.c.key == self.key)
        return select(inference.c.uid).where(scan_range.of(inference)).except_(have)


def _get_type(of: Property) -> TypeEngine[Any]:
    assert of.kind != "location"
    numbers: dict[str, TypeEngine[Any]] = {"whole": BigInteger(), "double": Double()}
    return numbers.get(of.stored) or TYPES[of.kind]


@dataclass(frozen=True, slots=True)
class ByProperty:
    """By a property of the inference itself."""

    of: Property
    descending: bool

    @property
    def kind(self) -> Family:
        assert self.of.kind != "location"
        return self.of.kind

    @property
    def is_scannable(self) -> bool:
        return self.of.name in _INDEXED

    @property
    def always(self) -> bool:
        column = inference.c.get(self.of.name)
        return self.of.name in _ALWAYS or (column is not None and not column.nullable)

    @property
    def type(self) -> TypeEngine[Any]:
        return _get_type(self.of)

    def rows(self, scan_range: ScanRange) -> Rows:
        row = inference.alias()
        value = self._of_ids(scan_range, row) if self.of.sql is None else self.of.sql(row)
        if self.of.kind == "string" and self.of.name not in {*_INDEXED, *_ALWAYS}:
            value = func.left(value, MOST_CHARACTERS)
        there = () if self.always else (value.is_not(None),)
        return Rows(value, row.c.uid, (scan_range.of(row), *there))

    def _of_ids(self, scan_range: ScanRange, row: FromClause) -> ColumnElement[Any]:
        alias = inference_alias.alias()
        end, choose = (func.max, func.greatest) if self.descending else (func.min, func.least)
        other = select(end(alias.c.alias)).where(scan_range.of(alias), alias.c.uid == row.c.uid)
        return choose(row.c.inference_id, other.scalar_subquery())


@dataclass(frozen=True, slots=True)
class AtRandom:
    """By a hash of the uid: its first values are a uniform sample, the same for the same seed."""

    seed: int
    kind: ClassVar[Family] = "number"
    descending: ClassVar[bool] = False
    is_scannable: ClassVar[bool] = False
    always: ClassVar[bool] = True

    @property
    def type(self) -> TypeEngine[Any]:
        return BigInteger()

    def rows(self, scan_range: ScanRange) -> Rows:
        row = inference.alias()
        seed = bind_one(self.seed, BigInteger())
        value = func.uuid_hash_extended(row.c.uid, seed, type_=BigInteger())
        return Rows(value, row.c.uid, (scan_range.of(row),))


@dataclass(frozen=True, slots=True)
class ByPrediction:
    """By a number of the predictions that the filter asks for, or of all if it asks for none.

    Several are sorted as several values of a key.
    """

    of: Property
    descending: bool
    wanted: Condition | None = None
    kind: ClassVar[Family] = "number"
    is_scannable: ClassVar[bool] = False
    always: ClassVar[bool] = False

    @property
    def type(self) -> TypeEngine[Any]:
        return _get_type(self.of)

    def rows(self, scan_range: ScanRange) -> Rows:
        row, other = prediction.alias(), prediction.alias()
        value, others = row.c[self.of.name], other.c[self.of.name]
        before = others > value if self.descending else others < value
        # of equal values one
        before = or_(before, and_(others == value, other.c.ordinal < row.c.ordinal))
        sooner = select(other.c.uid).where(
            *self._asked(scan_range, other), other.c.uid == row.c.uid, before
        )
        is_first = ~sooner.correlate_except(other).exists()
        return Rows(value, row.c.uid, (*self._asked(scan_range, row), is_first))

    def _asked(self, scan_range: ScanRange, row: FromClause) -> tuple[ColumnElement[bool], ...]:
        asked = () if self.wanted is None else (self.wanted.holds(scan_range, row.c.uid),)
        return scan_range.of(row), row.c[self.of.name].is_not(None), *asked


Order: TypeAlias = ByKey | ByProperty | ByDistance | AtRandom | ByPrediction
# Both are in the order of time: a uid begins with the time.
TIME = frozenset({"received_at", "uid"})
# A place has no order; truth lies in a table of its own, which Citus does not join with several
# models at once.
UNORDERED = frozenset({"location", "has_truth", "truth_label"})
_PREDICTION: Final = "prediction."
_OF_PREDICTIONS: Final = {
    _PREDICTION + name: of for name, of in PREDICTION_COLUMNS.items() if of.kind == "number"
}
SORTABLE = (*(name for name in PROPERTIES if name not in UNORDERED), *_OF_PREDICTIONS)


@dataclass(frozen=True, slots=True)
class MissingValue(Condition):
    """The inference has no value to be sorted by. `drives`: no other condition drives the query."""

    kind: ClassVar[str] = "missing"
    order: Order
    drives: bool

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: it has none."""
        return 2 if self.drives and isinstance(self.order, ByKey) else 0

    def uids(self, scan_range: ScanRange) -> Uids:
        assert isinstance(self.order, ByKey), "it has scans"
        return self.order.anti_join(scan_range)

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        order = self.order
        # which of several values is the first one changes nothing
        rows = (replace(order, many=False) if isinstance(order, ByKey) else order).rows(scan_range)
        return ~select(rows.uid).where(*rows.where, rows.uid == uid).exists()


# Resolves `sort`: `-received_at`, `frame_number`, `-metadata.width`, `inference.width`,
# `tag:string`; or a distance: `distance(location, POINT(13.4 52.5))`.

_NOWHERE: Final = 0
"""No metadata key has this integer."""
EXAMPLE: Final = "distance(location, POINT(13.4 52.5))"
PATH: Final = "sort"
_CALL: Final = re.compile(r"\s*distance\s*\(", re.IGNORECASE)
NEWEST_FIRST: Final = "-received_at"
# A key of 256 characters, with a prefix and a suffix.
MOST_SORT_CHARACTERS = 300
PATTERN: Final = r"^-?(inference\.|metadata\.|prediction\.)?.+$"
"""The values of `sort`, as a regular expression of ECMA 262."""
_PREFERRED: Final[tuple[Family, ...]] = ("number", "timestamp", "string", "bool")


@dataclass(frozen=True, slots=True)
class Sort:
    """A page's order. `order` None: by time."""

    descending: bool
    order: Order | None = None
    warnings: tuple[str, ...] = ()

    def asking(self, wanted: Condition | None) -> "Sort":
        """Return the order by those predictions alone that satisfy this."""
        if not isinstance(self.order, ByPrediction):
            return self
        return replace(self, order=replace(self.order, wanted=wanted))


async def resolve_sort(
    connection: AsyncConnection,
    models: Models,
    sort: str,
    *,
    kind: Family | None = None,
    unknown_keys: str = "refuse",
) -> Sort:
    """Resolve the order of that name; `kind`: the family that a key was sorted by on the page
    before; `unknown_keys`: `empty` if such a key is one that no inference has a value of.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name in TIME or name in {OWN + property_name for property_name in TIME}:
        return Sort(descending)
    if _CALL.match(name):
        return Sort(descending, await _make_distance_order(connection, models, sort, descending))
    property_ = "" if name.startswith(METADATA) else name.removeprefix(OWN)
    key, typed = name.removeprefix(METADATA), None
    names = {key, f"{key}[]", key.rpartition(":")[0] or key}
    keys = await key_registry.find(connection, models, names)
    if key not in keys and ":" in key and (entry := type_named(key.rpartition(":")[2])):
        key, typed = key.rpartition(":")[0], entry.family
    stored = None if name.startswith(OWN) else keys.get(key)
    if not name.startswith(OWN) and not (stored and any(seen.kind for seen in stored.types)):
        stored = keys.get(f"{key}[]", stored)  # the name of an array means its elements
    if name in _OF_PREDICTIONS:
        hidden = f"sort: the metadata key of this name is {METADATA}{key}"
        order = ByPrediction(_OF_PREDICTIONS[name], descending)
        return Sort(descending, order, (hidden,) if stored else ())
    if name == LABEL:
        raise _refuse_label()
    if property_ in PROPERTIES:
        if stored is not None and not name.startswith(METADATA):
            raise _refuse_ambiguous(key)
        if property_ in UNORDERED:
            raise _refuse_unordered(property_)
        return Sort(descending, ByProperty(PROPERTIES[property_], descending))
    if stored is None:
        own, _, kind_of_key = property_.rpartition(":")
        if own in PROPERTIES:
            message = f"{own!r} is a property, which has one type: leave out `:{kind_of_key}`"
            raise UnknownKey.of(PATH, message, [own])
        if unknown_keys == "empty":
            warning = f"No inference has the metadata key {key!r} to sort by."
            return Sort(descending, ByKey(_NOWHERE, "number", False, descending), (warning,))
        raise await _refuse_unknown(connection, models, key)
    family, warnings = _choose_family(stored, typed, kind)
    return Sort(descending, ByKey(stored.key, family, stored.many, descending), warnings)


async def _make_distance_order(
    connection: AsyncConnection, models: Models, sort: str, descending: bool
) -> ByDistance:
    # a blank instead of the sign, so that an error points at the right place of `sort`
    text = f" {sort[1:]}" if descending else sort
    try:
        node = parse_text(text, path=PATH, takes="number")
        known = await find_known_keys(connection, models, names_in(node))
        if not (isinstance(node, Operation) and node.op == "distance"):
            message = f"a page is sorted by a name or by a distance alone, as in {EXAMPLE}"
            raise error_of(meaningless(node, message, (EXAMPLE,)), text)
        distance = check_value(node, "number", known, source=text)
    except InvalidFilter as refused:  # it is no filter
        raise Invalid(refused.detail, faults=refused.faults) from None
    assert isinstance(distance, Distance)
    return ByDistance(distance, await read_names(connection, Missing(distance)), descending)


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
        is_text = chosen == "string" and key.spells_numbers
        remedy = f"Sort by `{key.name}:number`"
        return chosen, (key_registry.warn_of_text_order(key, remedy),) if is_text else ()
    sentence = (
        f"The key {key.name!r} has been seen as {', '.join(types_of(key))}: its {chosen} values"
    )
    instead = " or ".join(f"`{key.name}:{other}`" for other in others)
    return chosen, (f"{sentence} are sorted, what has none comes last. Sort by {instead} instead.",)


def _refuse_ambiguous(name: str) -> Invalid:
    suggestions = [OWN + name, METADATA + name]
    message = "it is a property of the inference and a metadata key: say which"
    return Invalid(f"sort: {name!r} is ambiguous.", faults=[Fault("sort", message, suggestions)])


def _refuse_label() -> Invalid:
    meant = [f"{METADATA}{LABEL}", "top_label"]
    message = f"it is the label of predictions, of which there are several: {' or '.join(meant)}"
    return Invalid("sort: 'label' has no order.", faults=[Fault("sort", message, meant)])


def _refuse_unordered(name: str) -> Invalid:
    if name != "location":
        message = f"nothing is sorted by {name!r}: filter by it, or group an aggregate by it"
        return Invalid.of("sort", message)
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
    message = f"there is no property and no metadata key {name!r}"
    faults = [Fault("sort", message, list(dict.fromkeys((*near, *SORTABLE))))]
    return UnknownKey(f"sort: {message}.{suggest(near)}", faults=faults)
