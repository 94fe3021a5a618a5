"""Compiles a typed filter to conditions: each node as true, or as false."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, combinations, pairwise
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    FromClause,
    Numeric,
    Text,
    and_,
    column,
    false,
    func,
    literal,
    not_,
    or_,
    select,
)

from inference_store.index.tables import inference
from inference_store.inference.metadata import COORDINATES
from inference_store.query.deadline import ScanRange
from inference_store.query.filters import typed
from inference_store.query.filters.certain import FLAGS, Doubts, find_doubts, make_certain
from inference_store.query.filters.typed import (
    COMPARISONS,
    OPPOSITE,
    Among,
    Area,
    Compared,
    Constant,
    Located,
    Or,
    Outside,
    Predicate,
    Value,
    leaves_of,
)

from .combination import Combination, Names, is_label
from .comparisons import (
    Compares,
    Comparing,
    Counts,
    Predicts,
    TopLabelled,
    list_values,
    merge_scores,
    names_labels,
    put_constant_right,
)
from .condition import (
    EVERYTHING,
    NOTHING,
    Condition,
    Neither,
    Uids,
    combine_all,
    combine_either,
    exists,
    find_time_ranges,
    find_uid_range,
    row_at_hand,
)
from .keys import OfKey, Related


def compile_condition(predicate: Predicate, names: Names, *, when: bool = True) -> Condition:
    """Compile a predicate to the condition that it is true, or (`when` False) false; never NULL."""
    return _COMPILERS[type(predicate)](predicate, names.compiled_by(compile_condition), when)


def _and(predicate: typed.And, names: Names, when: bool) -> Condition:
    parts = [compile_condition(part, names, when=when) for part in predicate.parts]
    return combine_all(merge_scores(parts)) if when else combine_either(parts)


def _or(predicate: typed.Or, names: Names, when: bool) -> Condition:
    parts = [
        compile_condition(part, names, when=when) for part in merge_equalities(predicate.parts)
    ]
    return combine_either(parts) if when else combine_all(parts)


def _unknown(predicate: typed.Unknown, names: Names, when: bool) -> Condition:
    decided = [compile_condition(predicate.of, names, when=truth) for truth in (True, False)]
    either = combine_either(decided)
    if when:
        return NOTHING if either == EVERYTHING else Neither((either,))
    return either


def _comparison(predicate: Compares, names: Names, when: bool) -> Condition:
    predicate = put_constant_right(predicate)
    if any(_has_none(leaf, names) for value in list_values(predicate) for leaf in leaves_of(value)):
        return NOTHING
    return (
        _of_time(predicate, names, when)
        or _of_uid(predicate, when)
        or _led(predicate, Comparing(predicate, when, names))
    )


def _has_none(leaf: Value, names: Names) -> bool:
    if isinstance(leaf, typed.Metadata):
        return leaf.key is None
    return isinstance(leaf, typed.Distance) and not _mapped(names)


def _mapped(names: Names) -> bool:
    return set(COORDINATES) <= set(names.coordinates)


def _of_time(predicate: Compares, names: Names, when: bool) -> Condition | None:
    """Compile `received_at`, which is never NULL, compared with an instant."""
    received = typed.Property("received_at", "timestamp")
    match predicate:
        case typed.Compared(op, left, Constant(_, at)) if left == received:
            return combine_either(list(find_time_ranges(op if when else OPPOSITE[op], at)))  # type: ignore[arg-type]
        case typed.Between(of, Constant() as low, Constant() as high) if of == received:
            bounds = typed.Compared(">=", of, low), typed.Compared("<=", of, high)
            return _and(typed.And(bounds), names, when)
    return None


def _of_uid(predicate: Compares, when: bool) -> Condition | None:
    match predicate:
        case typed.Compared("=", typed.Property("uid"), Constant(_, text)) if when:
            return combine_either(list(find_uid_range(str(text))))
    return None


def _led(predicate: Compares, comparing: Comparing) -> Condition:
    match predicate:
        case typed.Compared(op, typed.Counted() as counted, Constant() as number):
            op = op if comparing.when else OPPOSITE[op]
            if names_labels(counted.condition) and not COMPARISONS[op](Decimal(0), number.value):
                return Counts(comparing, counted, op, number)
        case typed.Compared("=", of, Constant()) | typed.Among(of) if comparing.when:
            if is_label(of) and isinstance(of, typed.Property):
                return TopLabelled(comparing)
    return comparing


def _missing(predicate: typed.Missing, names: Names, when: bool) -> Condition:
    of = predicate.of
    if isinstance(of, typed.Metadata):
        if of.key is None:
            return EVERYTHING if when else NOTHING
        return OfKey(of.key, names, valued=True, when=not when, many=of.many)
    if any(_has_none(leaf, names) for leaf in leaves_of(of)):
        return EVERYTHING if when else NOTHING
    value = Comparing(Outside(of, ()), True, names)
    return Neither((value,)) if when else value


def _sent(predicate: typed.Sent, names: Names, when: bool) -> Condition:
    if predicate.key is None:
        return NOTHING if when else EVERYTHING
    return OfKey(predicate.key, names, valued=False, when=when, many=predicate.many)


def _sets(predicate: typed.Sets, names: Names, when: bool) -> Condition:
    left, right = (
        tuple(_there(element, names) for element in side)
        for side in (predicate.left, predicate.right)
    )
    if not all((*left, *right)):
        return NOTHING
    return Related(typed.Sets(predicate.relation, left, right), when, names)


def _there(element: typed.Element, names: Names) -> typed.Element:
    return tuple(of for of in element if not any(_has_none(leaf, names) for leaf in leaves_of(of)))


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, Names, bool], Condition]]] = {
    typed.Fixed: lambda of, _, when: EVERYTHING if of.value is when else NOTHING,
    typed.Compared: _comparison,
    typed.Between: _comparison,
    typed.Among: _comparison,
    typed.Outside: _comparison,
    typed.Like: _comparison,
    typed.Missing: _missing,
    typed.Unknown: _unknown,
    typed.Sent: _sent,
    typed.Predicted: lambda predicate, names, when: Predicts(predicate.condition, when, names),
    typed.Located: lambda of, names, when: (
        WithinArea(of, when, names) if _mapped(names) else NOTHING
    ),
    typed.Sets: _sets,
    typed.Not: lambda of, names, when: compile_condition(of.of, names, when=not when),
    typed.And: _and,
    typed.Or: _or,
}


def merge_equalities(parts: Iterable[Predicate]) -> list[Predicate]:
    """Return the disjunction with as few parts as possible; nested ones are flattened."""
    # by its spelling: equal numbers that are written with different digits are different values
    lists: dict[str, tuple[Value, list[Constant]]] = {}
    others: list[Predicate] = []
    for part in _flatten(parts):
        match part:
            case Compared("=", of, Constant() as item) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Compared("=", Constant() as item, of) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Among(of, items):
                lists.setdefault(repr(of), (of, []))[1].extend(items)
            case _:
                others.append(part)
    return [*(_merge_items(of, items) for of, items in lists.values()), *others]


def _merge_items(of: Value, items: list[Constant]) -> Predicate:
    return Compared("=", of, items[0]) if len(items) == 1 else Among(of, tuple(items))


def _flatten(parts: Iterable[Predicate]) -> Iterable[Predicate]:
    for part in parts:
        if isinstance(part, Or):
            yield from _flatten(part.parts)
        else:
            yield part


# Up to this many areas have an index condition each; more of them share one box around all.
_MOST_BOXES = 8
_Box = tuple[Decimal, Decimal, Decimal, Decimal]


@dataclass(frozen=True, slots=True)
class WithinArea(Condition):
    """The location has the relation to the areas and points, or (`when` False) has not."""

    located: Located
    when: bool
    names: Names
    kind: str = "place"
    scans: int = 2

    def uids(self, scan_range: ScanRange) -> Uids:
        rows = Combination(scan_range, self.names)
        return rows.uids(self._hit(rows))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = Combination(scan_range, self.names, uid)
        return rows.exists(self._hit(rows))

    def _hit(self, rows: Combination) -> ColumnElement[bool]:
        at = rows.coordinates()
        x, y = at["longitude"], at["latitude"]
        hit = or_(false(), *self._areas(x, y), *self._points(x, y))
        return and_(self._around(x, y), hit) if self.when else ~hit

    def _areas(self, x: ColumnElement[Any], y: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        open_ = self.located.relation == "within"
        boxes = [(area, _box(area)) for area in self.located.areas]
        boxes_hit = [self._in_box(box, x, y, open_=open_) for area, box in boxes if _is_box(area)]
        others = tuple(area for area in self.located.areas if not _is_box(area))
        return [*boxes_hit, self._inside(others, x, y)] if others else boxes_hit

    def _points(self, x: ColumnElement[Any], y: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        if not self.located.points:
            return []
        points = self._unnested("point", *zip(*self.located.points, strict=True))
        return [
            select(points.c.a)
            .where(points.c.a == x, points.c.b == y)
            .correlate_except(points)
            .exists()
        ]

    def _around(self, x: ColumnElement[Any], y: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return boxes that contain every match, each coordinate by itself, for an index."""
        boxes = [_box(area) for area in self.located.areas]
        boxes += [(x, x, y, y) for x, y in self.located.points]
        if len(boxes) > _MOST_BOXES:
            west, east, south, north = zip(*boxes, strict=True)
            boxes = [(min(west), max(east), min(south), max(north))]
        number = self.names.number
        return and_(
            or_(false(), *(x.between(number(box[0]), number(box[1])) for box in boxes)),
            or_(false(), *(y.between(number(box[2]), number(box[3])) for box in boxes)),
        )

    def _in_box(
        self, box: _Box, x: ColumnElement[Any], y: ColumnElement[Any], *, open_: bool
    ) -> ColumnElement[bool]:
        west, east, south, north = map(self.names.number, box)
        if open_:
            return and_(x > west, x < east, y > south, y < north)
        return and_(x >= west, x <= east, y >= south, y <= north)

    def _inside(
        self, areas: tuple[Area, ...], x: ColumnElement[Any], y: ColumnElement[Any]
    ) -> ColumnElement[bool]:
        """Test by the edges: on one of them, or east of an odd number of them, without division."""
        numbered = [
            (*edge, Decimal(number)) for number, area in enumerate(areas) for edge in _edges(area)
        ]
        edge = self._unnested("edge", *zip(*numbered, strict=True))
        a, b, c, d, number = edge.c
        turn = (c - a) * (y - b) - (d - b) * (x - a)
        spanned = [
            value.between(func.least(s, e), func.greatest(s, e))
            for value, s, e in ((x, a, c), (y, b, d))
        ]
        on_edge = func.bool_or(and_(turn == 0, *spanned))
        crossed = and_((b > y) != (d > y), (turn > 0) == (d > b))
        odd = func.count().filter(crossed) % 2 == 1
        hit = and_(~on_edge, odd) if self.located.relation == "within" else or_(on_edge, odd)
        areas_hit = select(number).group_by(number).having(hit)
        return areas_hit.correlate_except(edge).exists()

    def _unnested(self, name: str, *columns: Any) -> Any:
        """Return lists of numbers as columns: one parameter for each column, however many rows."""
        lists = [self.names.bind_many(list(values), Numeric()) for values in columns]
        names = [column(letter, Numeric()) for letter in "abcde"[: len(columns)]]
        return func.unnest(*lists).table_valued(*names, name=name).render_derived()


def _edges(area: Area) -> list[tuple[Decimal, ...]]:
    return [(*start, *end) for ring in (area.outer, *area.holes) for start, end in pairwise(ring)]


def _box(area: Area) -> _Box:
    corners = [corner for ring in (area.outer, *area.holes) for corner in ring]
    xs, ys = zip(*corners, strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def _is_box(area: Area) -> bool:
    west, east, south, north = _box(area)
    corners = [(west, south), (east, south), (east, north), (west, north)]
    ring = [(x, y) for x, y in area.outer]
    around = corners * 2
    turns = [around[n : n + 4] for n in range(4)] + [around[::-1][n : n + 4] for n in range(4)]
    return not area.holes and [*ring[:4]] in turns and ring[4:] == ring[:1]


@dataclass(frozen=True, slots=True)
class NotAllOf(Condition):
    """At least one of these parts of the inference is not in doubt."""

    doubts: Doubts
    kind: str = "flags"

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        row = row_at_hand(uid, inference)
        if row is not None:
            return self._of(row)
        row = inference.alias("flagged")
        return exists([row], scan_range.of(row), row.c.uid == uid, self._of(row))

    def _of(self, row: FromClause) -> ColumnElement[bool]:
        return or_(*(not_(test_flags(row, FLAGS[doubt])) for doubt in sorted(self.doubts)))


def test_flags(row: FromClause, flags: tuple[str, ...]) -> ColumnElement[bool]:
    """Test whether a row of `inference` has one of these flags."""
    some = literal(list(flags), ARRAY(Text(collation="C")))
    overlaps: ColumnElement[bool] = row.c.flags.overlap(some)
    return overlaps


def compile_certain(predicate: Predicate, names: Names) -> Condition:
    """Return the condition that the predicate is true, whatever the index lacks."""
    parts = [compile_condition(predicate, names)]
    about = sorted(find_doubts(predicate))
    subsets = chain.from_iterable(combinations(about, size + 1) for size in range(len(about)))
    for doubts in map(frozenset, subsets):
        sure = make_certain(predicate, doubts)
        if sure != predicate:
            parts.append(combine_either([compile_condition(sure, names), NotAllOf(doubts)]))
    return combine_all(parts)
