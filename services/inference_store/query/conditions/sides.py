"""One side of a comparison in SQL: by its kind, and by how its values are stored."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Numeric,
    and_,
    case,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, INTEGER, TEXT, array
from sqlalchemy.sql import operators

from inference_store.index import long_text
from inference_store.query import properties
from inference_store.query.filters import typed
from inference_store.query.filters.typed import Constant
from inference_store.query.properties import ITEM_COLUMNS, PROPERTIES, like_prefix

from .combination import ITEM_TABLES, TYPES, Combination, Names

_Sql: TypeAlias = ColumnElement[Any]
_Test: TypeAlias = ColumnElement[bool]
SQL_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], _Test]]] = typed.COMPARISONS
# For texts of at most this length, the index and the whole texts have the same order.
_ALIKE_BYTES: Final = long_text.PREFIX_BYTES - 3


@dataclass(frozen=True, slots=True)
class Side:
    """Values of one combination. `sql`: the value; if `nullable`, NULL means that there is none."""

    kind: typed.Kind
    sql: _Sql
    names: Names
    nullable: bool = True

    def against(self, op: typed.Comparison, constant: Constant) -> _Test:
        """Compare with a constant."""
        if constant.kind == "bool" and op in {"=", "<>"}:
            # an index serves a truth value as it stands
            return self.sql if constant.value is (op == "=") else ~self.sql
        return SQL_COMPARISONS[op](self.sql, self.names.constant(constant))

    def among(self, items: Sequence[Constant]) -> _Test:
        """Test equality with one of the constants."""
        values = self.names.bind_many([item.value for item in items], TYPES[self.kind])
        return SQL_COMPARISONS["="](self.sql, values.any_())

    def like(self, pattern: Constant) -> _Test:
        """Test whether it matches the pattern."""
        return self.sql.like(self.names.bind_one(str(pattern.value), TEXT()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataText(Side):
    """A text of metadata. `value`: the indexed part; bounds on it contain every match.

    If the part in the index decides, the row itself is not read.
    """

    value: _Sql

    def against(self, op: typed.Comparison, constant: Constant) -> _Test:
        text = str(constant.value)
        size = len(text.encode())
        if size <= (long_text.WHOLE_BYTES if op in {"=", "<>"} else _ALIKE_BYTES):
            return self._value(op, text)
        around: Sequence[_Test] = []
        match op:
            case "=":
                around = [self._value("=", long_text.encode(text)[0])]
            case ">" | ">=":
                around = [self._value(">=", long_text.lower_bound(text))]
            case "<" | "<=":
                around = self._below(long_text.upper_bound(text))
        return and_(Side.against(self, op, constant), *around)

    def among(self, items: Sequence[Constant]) -> _Test:
        indexed = [long_text.encode(str(item.value)) for item in items]
        values = self.names.bind_many([value for value, _ in indexed], TEXT())
        candidates = SQL_COMPARISONS["="](self.value, values.any_())
        if all(whole is None for _, whole in indexed):
            return candidates
        return and_(candidates, Side.among(self, items))

    def like(self, pattern: Constant) -> _Test:
        prefix, alone = like_prefix(str(pattern.value))
        low, high = long_text.prefix_bounds(prefix)
        around = [self._value(">=", low), *self._below(high)] if prefix else []
        if alone and low == prefix:
            return and_(true(), *around)
        return and_(*around, Side.like(self, pattern))

    def _below(self, high: str | None) -> Sequence[_Test]:
        return [] if high is None else [self._value("<", high)]

    def _value(self, op: typed.Comparison, text: str) -> _Test:
        return SQL_COMPARISONS[op](self.value, self.names.bind_one(text, TEXT()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Double(Side):
    """A double, whose value is the decimal of its shortest spelling. Beside a number that is
    written out, the nearest double is meant, which an index serves."""

    double: _Sql

    @classmethod
    def of(cls, double: _Sql, names: Names) -> "Double":
        """Return the side for a column or expression of doubles."""
        return cls("number", cast(cast(double, TEXT), Numeric), names, double=double)

    def against(self, op: typed.Comparison, constant: Constant) -> _Test:
        bound = self.names.bind_one(float(str(constant.value)), DOUBLE_PRECISION())
        return SQL_COMPARISONS[op](self.double, bound)

    def among(self, items: Sequence[Constant]) -> _Test:
        doubles = [float(str(item.value)) for item in items]
        values = self.names.bind_many(doubles, DOUBLE_PRECISION())
        return SQL_COMPARISONS["="](self.double, values.any_())


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Side):
    """A label. It is compared with a name by its integer, which the index has."""

    number: _Sql

    def against(self, op: typed.Comparison, constant: Constant) -> _Test:
        if op not in {"=", "<>"}:
            return Side.against(self, op, constant)
        number = self.names.bind_one(self.names.label(str(constant.value)), INTEGER())
        return SQL_COMPARISONS[op](self.number, number)

    def among(self, items: Sequence[Constant]) -> _Test:
        numbers = sorted({self.names.label(str(item.value)) for item in items})
        values = self.names.bind_many(numbers, INTEGER())
        return SQL_COMPARISONS["="](self.number, values.any_())


def collate_text(sql: _Sql) -> _Sql:
    """Return a text that is no column, in code-point order all the same."""
    return cast(sql, TEXT).collate("C")


EARTH_RADIUS_METRES: Final = 6_371_008.8
# Doubles are rounded: a slightly larger box leaves nothing out.
_MORE: Final = 1.000001
_MORE_DEGREES: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Metres(Double):
    """A distance; if it has an upper bound, an index finds the candidates by a box."""

    point: typed.Distance
    coordinates: Mapping[str, _Sql]

    def against(self, op: typed.Comparison, constant: Constant) -> _Test:
        comparison = Double.against(self, op, constant)
        if op not in {"<", "<=", "="}:
            return comparison
        return and_(*self._box(float(str(constant.value))), comparison)

    def _box(self, metres: float) -> Iterator[_Test]:
        degrees = math.degrees(max(0.0, metres) / EARTH_RADIUS_METRES) * _MORE + _MORE_DEGREES
        longitude, latitude = float(self.point.longitude), float(self.point.latitude)
        south, north = latitude - degrees, latitude + degrees
        yield self._within("latitude", [(max(south, -90.0), min(north, 90.0))])
        if south <= -90 or north >= 90:
            return
        # where the circle touches its meridians
        slope = math.sin(math.radians(degrees)) / math.cos(math.radians(latitude))
        across = math.degrees(math.asin(min(1.0, slope))) * _MORE + _MORE_DEGREES
        yield self._within("longitude", split_longitude(longitude - across, longitude + across))

    def _within(self, name: str, spans: list[tuple[float, float]]) -> _Test:
        at, exact = self.coordinates[name], self.names.number
        return or_(*(at.between(exact(low), exact(high)) for low, high in spans))


def split_longitude(west: float, east: float) -> list[tuple[float, float]]:
    """Return the spans from west to east, split at the antimeridian."""
    if east - west >= 360:
        return [(-180.0, 180.0)]
    if west <= -180:
        return [(-180.0, east), (west + 360, 180.0)]
    if east >= 180:
        return [(west, 180.0), (-180.0, east - 360)]
    return [(west, east)]


def compute_metres(value: typed.Distance, rows: Combination) -> Metres:
    """Compute haversine distances, in doubles."""
    names, at = rows.names, rows.coordinates()

    def double(number: float) -> _Sql:
        return names.bind_one(number, DOUBLE_PRECISION())

    def radians(degrees: _Sql) -> _Sql:
        rounded = func.round(degrees, literal_column("30"))  # a cast of 1e-400 raises
        return func.radians(cast(rounded, DOUBLE_PRECISION), type_=DOUBLE_PRECISION())

    x, y = radians(at["longitude"]), radians(at["latitude"])
    east, north = radians(names.number(value.longitude)), radians(names.number(value.latitude))
    up, across = (func.sin(turn / double(2.0)) for turn in (north - y, east - x))
    share = up * up + func.cos(y) * func.cos(north) * (across * across)
    length: _Sql = double(2 * EARTH_RADIUS_METRES) * func.asin(
        func.least(double(1.0), func.sqrt(share)), type_=DOUBLE_PRECISION()
    )
    sql = Double.of(length, names).sql
    return Metres("number", sql, names, double=length, point=value, coordinates=at)


def build_side(value: typed.Value, rows: Combination) -> Side:
    """Return the value in SQL, and add the rows that hold it."""
    return _SIDES[type(value)](value, rows)


def _constant(value: Constant, rows: Combination) -> Side:
    bound = rows.names.constant(value)
    sql = collate_text(bound) if value.kind == "string" else bound
    return Side(value.kind, sql, rows.names, nullable=False)


def _metadata(value: typed.Metadata, rows: Combination) -> Side:
    row = rows.metadata(value).c
    if value.kind != "string":
        return Side(value.kind, row.value, rows.names, nullable=False)
    whole = func.coalesce(row.whole, row.value)
    return MetadataText("string", whole, rows.names, nullable=False, value=row.value)


def _property(value: typed.Property, rows: Combination) -> Side:
    if value.name == "inference_ids":
        return Side("string", rows.id().c.value, rows.names, nullable=False)
    return _stored(PROPERTIES[value.name], rows.own(), rows)


def _column(value: typed.Column, rows: Combination) -> Side:
    return _stored(ITEM_COLUMNS[value.of][value.name], rows.item(value.of), rows)


def _stored(entry: properties.Property, row: Any, rows: Combination) -> Side:
    assert entry.sql is not None, f"{entry.name} is no single value"
    assert entry.kind != "location", f"{entry.name} is no value to compare"
    sql = entry.sql(row)
    if entry.name in {"label", "top_label"}:
        return Label("string", sql, rows.names, number=row.c[entry.name])
    if entry.name == "truth_label":
        number = properties.truth_label_number(row)
        return Label("string", collate_text(sql), rows.names, number=number)
    if entry.stored == "double":
        return Double.of(sql, rows.names)
    if entry.stored == "whole":
        sql = cast(sql, Numeric)
    elif entry.name == "uid":
        sql = collate_text(sql)
    return Side(entry.kind, sql, rows.names)


def _applied(value: typed.Applied, rows: Combination) -> Side:
    args = [build_side(arg, rows).sql for arg in value.args]
    match value:
        case typed.Applied("^", (_, Constant(value=Decimal() as whole))):
            sql = reduce(operator.mul, [args[0]] * int(whole))  # `power` rounds
        case _:
            sql = _FUNCTIONS[value.function](*args)
    return Side(typed.kind_of(value), sql, rows.names)


def _divided(left: _Sql, right: _Sql) -> _Sql:
    # SQLAlchemy gives a custom operator the lowest precedence: a sum on its left needs brackets.
    dividend = left.self_group(against=operators.mul)
    return dividend.op("/", return_type=Numeric())(func.nullif(right, 0))


_ZERO: _Sql = literal_column("0::numeric", Numeric())
_ONE: _Sql = literal_column("1::numeric", Numeric())
_FINE: Final[_Sql] = literal_column("'0e-320'::numeric", Numeric())
_MOST_LOGARITHM: Final[_Sql] = literal_column("690::numeric", Numeric())


def _power(base: _Sql, exponent: _Sql) -> _Sql:
    """Return NULL for a power that is not real or beyond 1e±299, which would raise; both sides are
    computed once."""
    lists = array([base]), array([exponent])
    once = func.unnest(*lists).table_valued("x", "y", name="once").render_derived()
    x, y = cast(once.c.x, Numeric), cast(once.c.y, Numeric)
    logarithm = y * func.ln(func.abs(func.nullif(x, _ZERO)))
    is_whole = y == func.trunc(y)
    is_real = and_(or_(x > _ZERO, is_whole), func.abs(logarithm) <= _MOST_LOGARITHM)
    # a whole power has no more decimals than its base, or sixteen
    fine = case((is_whole, x + _FINE), else_=x)
    power = case(
        (and_(y == _ZERO, x.is_not(None)), _ONE),
        (and_(x == _ZERO, y > _ZERO), _ZERO),
        (is_real, func.power(fine, y, type_=Numeric())),
    )
    return select(power).correlate_except(once).scalar_subquery()


_FUNCTIONS: Final[Mapping[str, Callable[..., _Sql]]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided, "power": _power},
    "%": lambda left, right: func.mod(left, func.nullif(right, 0), type_=Numeric()),
    "div": lambda left, right: func.div(left, func.nullif(right, 0), type_=Numeric()),
    "casei": lambda text: func.fold_case(text, type_=TEXT()).collate("C"),
    "accenti": lambda text: func.fold_accents(text, type_=TEXT()).collate("C"),
}


def _counted(value: typed.Counted, rows: Combination) -> Side:
    own, of_truth = rows.own(), value.of == "truth"
    if value.condition is None and not of_truth:
        return Side("number", cast(own.c.prediction_count, Numeric), rows.names)
    row, scan_range = ITEM_TABLES[value.of].alias(), rows.scan_range
    assert rows.uid is not None
    matching = select(func.count()).select_from(row)
    matching = matching.where(scan_range.of(row), row.c.uid == rows.uid)
    if value.condition is not None:
        test = rows.names.condition_of(value.condition).holds(scan_range, row.c.uid)
        matching = matching.where(test)
    counted = cast(matching.correlate_except(row).scalar_subquery(), Numeric)
    known = PROPERTIES["has_truth"].sql if of_truth else None
    is_known = own.c.prediction_count.is_not(None) if known is None else known(own)
    return Side("number", case((is_known, counted)), rows.names)


def _truthful(value: typed.PredicateValue, rows: Combination) -> Side:
    uid = rows.own().c.uid if rows.uid is None else rows.uid
    true, false = (
        rows.names.condition_of(value.of, when=when).holds(rows.scan_range, uid)
        for when in (True, False)
    )
    return Side("bool", case((true, literal(True)), (false, literal(False))), rows.names)


_SIDES: Final[Mapping[type[Any], Callable[[Any, Combination], Side]]] = {
    Constant: _constant,
    typed.Metadata: _metadata,
    typed.Property: _property,
    typed.Column: _column,
    typed.Applied: _applied,
    typed.Counted: _counted,
    typed.Distance: compute_metres,
    typed.PredicateValue: _truthful,
}


# Tests of an inference's location.

# Up to this many areas have an index condition each; more of them share one box around all.
_MOST_BOXES: Final = 8
_Box: TypeAlias = tuple[Any, Any, Any, Any]
"""West, east, south, north."""


def test_location(located: typed.Located, when: bool, rows: Combination) -> Iterator[_Test]:
    """Test that the location is in the relation, or (`when` False) is not."""
    names, at = rows.names, rows.coordinates()
    x, y = at["longitude"], at["latitude"]
    hit = or_(false(), *_hits(located, x, y, names))
    if when:
        yield _around(located, x, y, names)
    yield hit if when else ~hit


def _hits(located: typed.Located, x: _Sql, y: _Sql, names: Names) -> Iterator[_Test]:
    is_open = located.relation == "within"
    for area in filter(_is_box, located.areas):
        west, east, south, north = map(names.number, _box(area))
        if is_open:
            yield and_(x > west, x < east, y > south, y < north)
        else:
            yield and_(x >= west, x <= east, y >= south, y <= north)
    if others := [area for area in located.areas if not _is_box(area)]:
        yield _inside(others, x, y, names, is_open=is_open)
    if located.points:
        points = _unnested("point", names, *zip(*located.points, strict=True))
        equal = select(points.c.a).where(points.c.a == x, points.c.b == y)
        yield equal.correlate_except(points).exists()


def _around(located: typed.Located, x: _Sql, y: _Sql, names: Names) -> _Test:
    """Return boxes that contain every match, each coordinate by itself, for an index."""
    boxes = [*map(_box, located.areas), *((x, x, y, y) for x, y in located.points)]
    if len(boxes) > _MOST_BOXES:
        west, east, south, north = zip(*boxes, strict=True)
        boxes = [(min(west), max(east), min(south), max(north))]
    number = names.number
    return and_(
        or_(false(), *(x.between(number(box[0]), number(box[1])) for box in boxes)),
        or_(false(), *(y.between(number(box[2]), number(box[3])) for box in boxes)),
    )


def _inside(areas: list[typed.Area], x: _Sql, y: _Sql, names: Names, *, is_open: bool) -> _Test:
    """Test by the edges: on one of them, or east of an odd number of them, without division."""
    numbered = [
        (*start, *end, Decimal(number))
        for number, area in enumerate(areas)
        for ring in (area.outer, *area.holes)
        for start, end in pairwise(ring)
    ]
    edge = _unnested("edge", names, *zip(*numbered, strict=True))
    a, b, c, d, number = edge.c
    turn = (c - a) * (y - b) - (d - b) * (x - a)
    spanned = [
        value.between(func.least(s, e), func.greatest(s, e))
        for value, s, e in ((x, a, c), (y, b, d))
    ]
    on_edge = func.bool_or(and_(turn == 0, *spanned))
    crossed = and_((b > y) != (d > y), (turn > 0) == (d > b))
    odd = func.count().filter(crossed) % 2 == 1
    hit = and_(~on_edge, odd) if is_open else or_(on_edge, odd)
    areas_hit = select(number).group_by(number).having(hit)
    return areas_hit.correlate_except(edge).exists()


def _unnested(name: str, names: Names, *columns: Any) -> Any:
    """Return lists of numbers as columns: one parameter for each column, however many rows."""
    lists = [names.bind_many(list(values), Numeric()) for values in columns]
    letters = [column(letter, Numeric()) for letter in "abcde"[: len(columns)]]
    return func.unnest(*lists).table_valued(*letters, name=name).render_derived()


def _box(area: typed.Area) -> _Box:
    corners = [corner for ring in (area.outer, *area.holes) for corner in ring]
    xs, ys = zip(*corners, strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def _is_box(area: typed.Area) -> bool:
    west, east, south, north = _box(area)
    corners = {(west, south), (east, south), (east, north), (west, north)}
    is_straight = all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(area.outer))
    return not area.holes and len(area.outer) == 5 and {*area.outer} == corners and is_straight
