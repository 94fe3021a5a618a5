"""Comparisons of values: true by some combination of them, false by none of those there are."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, and_, except_, or_

from inference_store.index.tables import inference
from inference_store.query.filters.typed import (
    Among,
    Between,
    Column,
    Compared,
    Comparison,
    Constant,
    Counted,
    Distance,
    Holds,
    Like,
    Metadata,
    Property,
    Value,
)
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .condition import Uids
from .names import Names
from .sides import COMPARISONS, Side
from .values import leaves, side_of

Compares: TypeAlias = Compared | Between | Among | Like | Holds
MIRRORED: Final[dict[Comparison, Comparison]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
OPPOSITE: Final[dict[Comparison, Comparison]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
# Properties whose index finds the values.
_INDEXED: Final = frozenset({"inference_id", "data_hash"})


def values_in(predicate: Compares) -> tuple[Value, ...]:
    """What is compared."""
    match predicate:
        case Compared():
            return predicate.left, predicate.right
        case Between():
            return predicate.of, predicate.low, predicate.high
        case _:
            return (predicate.of,)


def leading_first(predicate: Compares) -> Compares:
    """The same with a constant on the right."""
    if isinstance(predicate, Compared) and isinstance(predicate.left, Constant):
        return Compared(MIRRORED[predicate.op], predicate.right, predicate.left)
    return predicate


@dataclass(frozen=True, slots=True)
class Comparing:
    """Values compared; the comparison is true, or (`when` False) false."""

    predicate: Compares
    when: bool
    names: Names
    leaves: tuple[Value, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        found = tuple(leaf for value in values_in(self.predicate) for leaf in leaves(value))
        object.__setattr__(self, "leaves", found)

    @property
    def kind(self) -> str:
        """By what stands first."""
        found = [_kind(leaf) for leaf in self.leaves if not isinstance(leaf, Constant)]
        return found[0] if found else "property"

    @property
    def many(self) -> bool:
        """Whether an inference may have several combinations of the values."""
        return any(map(_is_many, self.leaves))

    @property
    def unique(self) -> bool:
        """Each combination is named; of several values only one is equal to a constant, as it
        stands: folded, or compared with others, several may be."""
        equal = isinstance(self.predicate, Compared) and self.predicate.op == "="
        by_one = equal and set(map(type, values_in(self.predicate))) == {Metadata, Constant}
        return not self.many or not self.when or by_one

    @property
    def scans(self) -> int:
        """One for each value that lies in a table of its own, if one leads."""
        if not self._leads:
            return 0
        scans = sum(2 if _is_ids(leaf) else 1 for leaf in self.leaves if _leads(leaf))
        return max(1, scans) * (2 if self.many and not self.when else 1)

    @property
    def _leads(self) -> bool:
        return any(map(_leads, self.leaves)) or self._by_index

    @property
    def _by_index(self) -> bool:
        """A property that has an index, compared with constants."""
        first, *others = values_in(self.predicate)
        named = isinstance(first, Property) and first.name in _INDEXED
        return named and all(isinstance(other, Constant) for other in others)

    @property
    def by_value(self) -> bool:
        """Whether its list is one stretch of an index, or several, in order of the values."""
        first, *others = values_in(self.predicate)
        alone = isinstance(first, Metadata) and all(isinstance(each, Constant) for each in others)
        equal = self.when and isinstance(self.predicate, Compared) and self.predicate.op == "="
        return alone and not equal and (self.when or not self.many)

    def uids(self, scan_range: ScanRange) -> Uids | None:
        if not self._leads:
            return None
        if self.when or not self.many:
            return self._combinations(scan_range, hit=True)
        every = self._combinations(scan_range, hit=False)
        return except_(every, self._combinations(scan_range, hit=True))

    def _combinations(self, scan_range: ScanRange, *, hit: bool) -> Uids:
        rows = Combination(scan_range, self.names)
        if not any(map(_leads, self.leaves)):
            rows.take(inference, scan_range.of(inference))
        sides = self._sides(rows)
        return rows.uids(*(self._hit(sides) if hit else self._there(sides)))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        found = self._some(scan_range, uid, hit=True)
        if self.when or not self.many:
            return found
        return and_(self._some(scan_range, uid, hit=False), ~found)

    def _some(
        self, scan_range: ScanRange, uid: ColumnElement[Any], *, hit: bool
    ) -> ColumnElement[bool]:
        rows = Combination(scan_range, self.names, uid)
        sides = self._sides(rows)
        tests = self._hit(sides) if hit else self._there(sides)
        return rows.exists(*tests, one_by_one=self._of_two)

    @property
    def _of_two(self) -> bool:
        """Whether two values of an inference are compared: Postgres would hash all that there are,
        and where it takes a span of time to be short, join every row of it with every other. Of
        the coordinates of a distance it knows what it needs."""
        own = [leaf for leaf in self.leaves if not isinstance(leaf, (Constant, Distance))]
        return len(own) > 1

    def _sides(self, rows: Combination) -> list[Side]:
        """Rows that lead are taken first: what else there is joins them."""
        values = values_in(self.predicate)
        order = sorted(range(len(values)), key=lambda n: not any(map(_leads, leaves(values[n]))))
        found = {n: side_of(values[n], rows) for n in order}
        return [found[n] for n in range(len(values))]

    def _there(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        return (side.sql.is_not(None) for side in sides if side.nullable)

    def _hit(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        """The comparison; its opposite where that is asked of the one combination there is."""
        if self.when or self.many:
            yield from self._true(sides)
            return
        yield from self._false(sides)

    def _true(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        first = sides[0]
        match self.predicate:
            case Compared(op, _, right):
                yield compared(op, first, right, sides[1])
            case Between(_, low, high):
                yield compared(">=", first, low, sides[1])
                yield compared("<=", first, high, sides[2])
            case Among(_, items):
                yield first.among(items)
            case Like(_, pattern):
                yield first.like(pattern)
            case Holds():
                yield first.sql

    def _false(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        first = sides[0]
        match self.predicate:
            case Compared(op, _, right):
                yield compared(OPPOSITE[op], first, right, sides[1])
            case Between(_, low, high):
                yield from self._there(sides)
                yield or_(compared("<", first, low, sides[1]), compared(">", first, high, sides[2]))
            case Among(_, items):
                yield ~first.among(items)
            case Like(_, pattern):
                yield ~first.like(pattern)
            case Holds():
                yield ~first.sql


def compared(op: Comparison, left: Side, right: Value, side: Side) -> ColumnElement[bool]:
    """Two sides compared, one of them perhaps a constant."""
    if isinstance(right, Constant):
        return left.against(op, right)
    return COMPARISONS[op](left.sql, side.sql)


def _is_ids(leaf: Value) -> bool:
    return isinstance(leaf, Property) and leaf.name == "inference_ids"


def _is_many(leaf: Value) -> bool:
    return (isinstance(leaf, Metadata) and leaf.many) or _is_ids(leaf)


def _leads(leaf: Value) -> bool:
    """Whether the value lies in a row of its own, which an index finds."""
    return isinstance(leaf, (Metadata, Distance)) or _is_ids(leaf)


def _kind(leaf: Value) -> str:
    match leaf:
        case Metadata():
            return "metadata"
        case Column() | Counted():
            return "prediction"
        case Distance():
            return "place"
        case Property(name) if name in {"inference_id", "inference_ids", "uid"}:
            return "id"
        case _:
            return "property"
