"""One combination of an inference's values: the rows that hold them, as FROM and WHERE; and whether
an inference has a key."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    DateTime,
    FromClause,
    Numeric,
    Select,
    Table,
    and_,
    literal_column,
    or_,
    select,
    true,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index.tables import (
    SIDE_TABLES,
    inference,
    inference_alias,
    label,
    metadata_key,
    metadata_number,
    metadata_presence,
    prediction,
    truth,
)
from inference_store.inference.metadata import COORDINATES
from inference_store.query.deadline import ScanRange, bind_many, bind_one
from inference_store.query.filters import typed

from .condition import Condition, Uids, exists, only_true, row_at_hand

TYPES: Mapping[typed.Kind, TypeEngine[Any]] = {
    "number": Numeric(),
    "string": TEXT(),
    "bool": Boolean(),
    "timestamp": DateTime(timezone=True),
}
ITEM_TABLES: Mapping[typed.Item, Table] = {"prediction": prediction, "truth": truth}
NO_LABEL = 0
"""No label has this integer."""


@dataclass(frozen=True, slots=True)
class Names:
    """The integers of a filter's names; no inference has a name that is not among them."""

    labels: Mapping[str, int] = field(default_factory=dict)
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """The metadata keys `longitude` and `latitude`."""
    compile: Callable[..., Condition] | None = field(default=None, compare=False, repr=False)
    """`compile_condition`, for the predicates inside values and conditions."""
    _bound: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)

    def condition_of(self, predicate: typed.Predicate, *, when: bool = True) -> Condition:
        """Compile a predicate inside what is being compiled."""
        assert self.compile is not None
        return self.compile(predicate, self, when=when)

    def bind_one(self, value: Any, kind: TypeEngine[Any]) -> ColumnElement[Any]:
        """Return a value as a parameter; equal values share one parameter."""
        bound: ColumnElement[Any] = self._once(f"{kind}", value, lambda: bind_one(value, kind))
        return bound

    def bind_many(self, values: Sequence[Any], kind: TypeEngine[Any]) -> Any:
        """Return a list as one parameter."""
        return self._once(f"{kind}[]", values, lambda: bind_many(values, kind))

    def constant(self, constant: typed.Constant) -> ColumnElement[Any]:
        """Return a constant as a parameter."""
        return self.bind_one(constant.value, TYPES[constant.kind])

    def number(self, number: Decimal | float) -> ColumnElement[Any]:
        """Return an exact number as a parameter; a double by its shortest spelling."""
        return self.bind_one(Decimal(str(number)), Numeric())

    def label(self, name: str) -> int:
        """Return a label's integer; NO_LABEL for a label that nothing has."""
        return self.labels.get(name, NO_LABEL)

    def _once(self, kind: str, value: Any, bind: Any) -> Any:
        # by its spelling: 1 and 1.0 are equal, but their quotients have other scales
        key = (kind, repr(value))
        if key not in self._bound:
            self._bound[key] = bind()
        return self._bound[key]


async def read_names(connection: AsyncConnection, predicate: typed.Predicate) -> Names:
    """Read the integers of the labels and coordinates that a predicate names."""
    labels = list_labels(predicate, *typed.COMPARISONS)
    mapped = any(
        isinstance(node, (typed.Located, typed.Distance)) for node in typed.iterate_nodes(predicate)
    )
    keys = sorted(COORDINATES) if mapped else []
    return Names(
        await _integers(connection, label.c.name, label.c.label, labels),
        await _integers(connection, metadata_key.c.name, metadata_key.c.key, keys),
    )


def is_label(value: typed.Value) -> bool:
    """Check whether the value is a label, which has an integer."""
    return (isinstance(value, typed.Column) and value.name == "label") or (
        isinstance(value, typed.Property) and value.name in {"top_label", "truth_label"}
    )


def list_labels(predicate: Any, *ops: str) -> list[str]:
    """Return the labels that a predicate, or several, compare by IN or one of these operators."""
    of_labels = (
        node.values
        for node in typed.iterate_nodes(predicate)
        if isinstance(node, typed.Compared)
        and node.op in ("in", *ops)
        and any(map(is_label, node.values))
    )
    constants = (of for values in of_labels for of in values if isinstance(of, typed.Constant))
    return sorted({str(constant.value) for constant in constants})


async def _integers(
    connection: AsyncConnection, name: Any, number: Any, names: Sequence[str]
) -> dict[str, int]:
    if not names:
        return {}
    rows = await connection.execute(
        select(name, number).where(name == bind_many(names, TEXT()).any_())
    )
    return {row[0]: row[1] for row in rows}


class Combination:
    """Rows of one inference, by its uid; without one the first row that is added drives."""

    def __init__(
        self,
        scan_range: ScanRange,
        names: Names,
        uid: ColumnElement[Any] | None = None,
        *,
        by_uid: bool = False,
    ) -> None:
        """`by_uid`: read metadata by the index of uids, not by a span of values, which is long."""
        self.scan_range = scan_range
        self._by_uid = by_uid
        self.names = names
        self.uid = uid
        self.froms: list[FromClause] = []
        self.where: list[ColumnElement[bool]] = []
        self._rows: dict[str, FromClause] = {}

    def take(self, table: FromClause, *where: ColumnElement[bool]) -> FromClause:
        """Add a row of the same inference."""
        here = [] if self.uid is None else [table.c.uid == self.uid]
        self.where += [*where, *here]
        self.froms.append(table)
        self.uid = table.c.uid if self.uid is None else self.uid
        return table

    def metadata(self, of: typed.Metadata) -> FromClause:
        """Add a row of one value of the key; for a key with a single value, the same row again."""
        assert of.key is not None, "a key that no inference has is decided before there is any SQL"
        table, key = SIDE_TABLES[of.kind], of.key
        if of.many:
            return self._value_of(table, key)
        return self._once(f"{of.kind} {key}", lambda: self._value_of(table, key))

    def _value_of(self, table: Table, key: int) -> FromClause:
        row = table.alias()
        # no index has a sum
        of_row = row.c.key + literal_column("0") if self._by_uid else row.c.key
        return self.take(
            row, self.scan_range.of(row), of_row == self.names.bind_one(key, INTEGER())
        )

    def own(self) -> FromClause:
        """Return the row of `inference`: the present one, if there is one."""
        row, other = row_at_hand(self.uid, inference), inference.alias()
        if row is not None:
            return row
        return self._once("own", lambda: self.take(other, self.scan_range.of(other)))

    def item(self, of: typed.Item) -> FromClause:
        """Return the present row of `prediction` or `truth`."""
        row = row_at_hand(self.uid, ITEM_TABLES[of])
        assert row is not None, "a column of an item stands inside prediction() or truth()"
        return row

    def id(self) -> FromClause:
        """Add a row of one of the inference's ids."""
        own, other, scan_range = inference.alias(), inference_alias.alias(), self.scan_range
        ids = union_all(
            select(own.c.uid, own.c.inference_id.label("value")).where(scan_range.of(own)),
            select(other.c.uid, other.c.alias).where(scan_range.of(other)),
        ).subquery()
        return self.take(ids)

    def coordinates(self) -> Mapping[str, ColumnElement[Any]]:
        """Return `longitude` and `latitude`, both on the map."""
        return {name: self._coordinate(name) for name in COORDINATES}

    def _coordinate(self, name: str) -> Any:
        def row() -> FromClause:
            value_row = self._value_of(metadata_number, self.names.coordinates[name])
            low, high = map(self.names.number, (-COORDINATES[name], COORDINATES[name]))
            self.where.append(value_row.c.value.between(low, high))
            return value_row

        return self._once(name, row).c.value

    def _once(self, name: str, row: Any) -> FromClause:
        if name not in self._rows:
            self._rows[name] = row()
        return self._rows[name]

    def exists(self, *where: ColumnElement[bool], one_by_one: bool = False) -> ColumnElement[bool]:
        """Test whether there is such a combination for which this is true; see `exists`."""
        if self.froms:
            one_by_one = one_by_one or self.scan_range.one_by_one
            return exists(self.froms, *self.where, *where, one_by_one=one_by_one)
        # the brackets: IS binds more tightly than NOT
        return Grouping(and_(true(), *self.where, *where)).is_(true())

    def uids(self, *where: ColumnElement[bool]) -> Select[Any]:
        """Select the inferences that have such a combination, as often as they have one."""
        assert self.uid is not None, "no row drives"
        return select(self.uid.label("uid")).select_from(*self.froms).where(*self.where, *where)


@dataclass(frozen=True, slots=True)
class Found(Condition):
    """Some combination of an inference's values passes the tests, which add the rows that they
    are about."""

    of: Any
    """The predicate, and how it is tested: equal conditions have equal ones."""
    names: Names
    tests: Callable[[Combination], Iterable[ColumnElement[bool]]] = field(compare=False, repr=False)
    kind: str
    scans: int = 0
    unique: bool = True
    by_value: bool = False
    """Whether its list is one or several ranges of an index, in the order of the values."""
    one_by_one: bool = False

    def uids(self, scan_range: ScanRange) -> Uids:
        rows = Combination(scan_range, self.names)
        return rows.uids(*map(only_true, self.tests(rows)))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        is_span = self.by_value or self.kind == "place"
        by_uid = scan_range.one_by_one and is_span
        rows = Combination(scan_range, self.names, uid, by_uid=by_uid)
        return rows.exists(*self.tests(rows), one_by_one=self.one_by_one)


_SENT = (*SIDE_TABLES.values(), metadata_presence)


@dataclass(frozen=True, slots=True)
class OfKey(Condition):
    """The key was sent, or (`valued`) has a value, which JSON null is not; or the opposite."""

    key: int
    names: Names
    valued: bool
    when: bool
    many: bool = True
    """Whether an inference may have several rows of the key in one table."""
    kind: str = "metadata"

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: inferences without the key are in no index."""
        return len(_SENT) if self.when else 0

    def uids(self, scan_range: ScanRange) -> Uids:
        return union(*self.rows(scan_range))

    def rows(self, scan_range: ScanRange) -> list[Select[Any]]:
        """Select the inferences that have the key, table by table; some are in several tables."""
        return [select(table.c.uid).where(self._here(scan_range, table)) for table in _SENT]

    def counted(self, scan_range: ScanRange) -> list[tuple[int, Uids]]:
        """Return lists with signs; in their sum each inference with the key counts once.

        A text that spells a number has rows in two tables.
        """
        rows = self.rows(scan_range)
        if self.many:
            return [(1, union(*rows))]
        again = [self._again(scan_range, index) for index in range(1, len(_SENT))]
        return [*((1, uids) for uids in rows), *((-1, uids) for uids in again)]

    def _again(self, scan_range: ScanRange, index: int) -> Select[Any]:
        """Select those with a row in this table and in one before it."""
        row, before = _SENT[index].alias(), [table.alias() for table in _SENT[:index]]
        elsewhere = union_all(
            *(select(other.c.uid).where(self._here(scan_range, other)) for other in before)
        ).subquery()
        is_elsewhere = exists([elsewhere], elsewhere.c.uid == row.c.uid)
        return select(row.c.uid).where(self._here(scan_range, row), is_elsewhere)

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = (table.alias() for table in _SENT)
        apart = scan_range.one_by_one
        has = [
            exists([row], self._here(scan_range, row), row.c.uid == uid, one_by_one=apart)
            for row in rows
        ]
        return or_(*has) if self.when else ~or_(*has)

    def _here(self, scan_range: ScanRange, table: FromClause) -> ColumnElement[bool]:
        here = and_(scan_range.of(table), table.c.key == self.names.bind_one(self.key, INTEGER()))
        return and_(here, ~table.c.is_null) if self.valued and "is_null" in table.c else here
