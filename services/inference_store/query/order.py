"""Orders other than time: by the values of a metadata key, by a property, or by distance.

An inference without a value comes last in both directions. Equal values are sorted by uid, the
newest first if the order is descending. A uid is made from the model's id as well: two models have
the same one only by a collision of 62-bit hashes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Select,
    false,
    func,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index.tables import SIDE_TABLES, inference, inference_alias
from inference_store.inference.metadata import COORDINATES, Family

from .conditions.combination import TYPES, Combination, Names
from .conditions.condition import Condition, Uids
from .conditions.sides import compute_metres
from .filters.typed import Distance
from .matching import Hit
from .properties import PROPERTIES, Property
from .scan_range import ScanRange, bind_one


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

    @property
    def _nowhere(self) -> bool:
        return not set(COORDINATES) <= set(self.names.coordinates)

    def rows(self, scan_range: ScanRange) -> Rows:
        """Return the range's values."""
        if self._nowhere:
            # any double: no row is read, and a constant orders nothing
            return Rows(inference.c.top_score, inference.c.uid, (false(),))
        combination = Combination(scan_range, self.names)
        value = compute_metres(self.to, combination).double
        assert combination.uid is not None, "a coordinate leads"
        return Rows(value, combination.uid, tuple(combination.where))

    def is_missing(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Test whether the inference with this uid has no location."""
        if self._nowhere:
            return true()
        combination = Combination(scan_range, self.names, uid)
        combination.coordinates()
        return ~combination.exists()


# Properties are sorted by this many of their first characters.
MOST_CHARACTERS = 256
_UID = UUID_TYPE(as_uuid=True)
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
        """The type of its values."""
        return TYPES[self.kind]

    def rows(self, scan_range: ScanRange) -> Rows:
        """Return the range's values."""
        table = SIDE_TABLES[self.kind]
        where = [scan_range.of(table), table.c.key == self.key]
        if self.many:
            other = table.alias()
            before = other.c.value > table.c.value
            if not self.descending:
                before = other.c.value < table.c.value
            same = (scan_range.of(other), other.c.key == self.key, other.c.uid == table.c.uid)
            where.append(~select(other.c.uid).where(*same, before).exists())
        return Rows(table.c.value, table.c.uid, tuple(where))

    def is_missing(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Test whether the inference with this uid has no such value."""
        table = SIDE_TABLES[self.kind].alias()
        here = (scan_range.of(table), table.c.key == self.key, table.c.uid == uid)
        return ~select(table.c.uid).where(*here).exists()

    def anti_join(self, scan_range: ScanRange) -> Uids:
        """Select all inferences of the range that have no such value."""
        table = SIDE_TABLES[self.kind]
        have = select(table.c.uid).where(scan_range.of(table), table.c.key == self.key)
        return select(inference.c.uid).where(scan_range.of(inference)).except_(have)


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
        numbers: dict[str, TypeEngine[Any]] = {"whole": BigInteger(), "double": Double()}
        return numbers.get(self.of.stored) or TYPES[self.kind]

    def _value(self, scan_range: ScanRange, table: Any) -> ColumnElement[Any]:
        if self.of.sql is None:
            return self._of_ids(scan_range, table)
        value = self.of.sql(table)
        if self.of.kind == "string" and self.of.name not in _INDEXED:
            return func.left(value, MOST_CHARACTERS)
        return value

    def _of_ids(self, scan_range: ScanRange, table: Any) -> ColumnElement[Any]:
        alias = inference_alias.alias()
        end, choose = (func.max, func.greatest) if self.descending else (func.min, func.least)
        other = select(end(alias.c.alias)).where(scan_range.of(alias), alias.c.uid == table.c.uid)
        return choose(table.c.inference_id, other.scalar_subquery())

    def rows(self, scan_range: ScanRange) -> Rows:
        value = self._value(scan_range, inference)
        there = () if self.always else (value.is_not(None),)
        return Rows(value, inference.c.uid, (scan_range.of(inference), *there))

    def is_missing(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        own = inference.alias()
        here = (scan_range.of(own), own.c.uid == uid, self._value(scan_range, own).is_(None))
        return select(own.c.uid).where(*here).exists()


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
        uid = inference.c.uid
        value = func.uuid_hash_extended(uid, bind_one(self.seed, BigInteger()), type_=BigInteger())
        return Rows(value, uid, (scan_range.of(inference),))

    def is_missing(self, _scope: ScanRange, _uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return false()


@dataclass(frozen=True, slots=True)
class Backwards:
    """Another order from its end to its beginning, of inferences that have a value.

    Of several values it takes the one that the other order takes.
    """

    order: "Order"
    # those without a value come last in the other order: they are before none that has one
    always: ClassVar[bool] = True

    @property
    def kind(self) -> Family:
        return self.order.kind

    @property
    def descending(self) -> bool:
        return not self.order.descending

    @property
    def is_scannable(self) -> bool:
        return self.order.is_scannable

    @property
    def type(self) -> TypeEngine[Any]:
        return self.order.type

    def rows(self, scan_range: ScanRange) -> Rows:
        return self.order.rows(scan_range)

    def is_missing(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.order.is_missing(scan_range, uid)


Order: TypeAlias = ByKey | ByProperty | ByDistance | AtRandom | Backwards
# Both are in the order of time: a uid begins with the time.
TIME = frozenset({"received_at", "uid"})
UNORDERED = frozenset({"location"})
SORTABLE = tuple(name for name in PROPERTIES if name not in UNORDERED)


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

    def uids(self, scan_range: ScanRange) -> Uids | None:
        return (
            self.order.anti_join(scan_range)
            if self.drives and isinstance(self.order, ByKey)
            else None
        )

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.order.is_missing(scan_range, uid)


def test_beyond(order: Order, rows: Rows, hit: Hit, *, after: bool) -> ColumnElement[bool]:
    """Test that a row comes after a hit in the order, or before it."""
    position = tuple_(rows.value, rows.uid)
    bound = tuple_(bind_one(hit.value, order.type), bind_one(hit.uid, _UID))
    return position < bound if after == order.descending else position > bound


def sort_rows(order: Order, rows: Rows, matches: Select[Any], limit: int) -> Select[Any]:
    """Select the first of these rows."""
    keys = (rows.value, rows.uid)
    return matches.order_by(*(k.desc() if order.descending else k.asc() for k in keys)).limit(limit)
