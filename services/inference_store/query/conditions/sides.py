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
from inference_store.index.tables import prediction
from inference_store.query import properties
from inference_store.query.filters import typed
from inference_store.query.filters.arithmetic import (
    DECIMALS_OF_DEGREES,
    EARTH_RADIUS_METRES,
    LEAST_DOUBLE,
    MOST_DOUBLE,
    MOST_LOGARITHM,
    MOST_POWER,
    round_degrees,
)
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, like_prefix

from .combination import Combination, Names

SQL_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], ColumnElement[bool]]]] = typed.COMPARISONS
# For texts of at most this length, the index and the whole texts have the same order.
_ALIKE_BYTES: Final = long_text.PREFIX_BYTES - 3


@dataclass(frozen=True, slots=True)
class Side:
    """Values of one combination. `sql`: the value; if `nullable`, NULL means that there is none."""

    kind: typed.Kind
    sql: ColumnElement[Any]
    names: Names
    nullable: bool = True

    def against(self, op: typed.Comparison, constant: typed.Constant) -> ColumnElement[bool]:
        """Compare with a constant."""
        if constant.kind == "bool" and op in {"=", "<>"}:
            # an index serves a truth value as it stands
            return self.sql if constant.value is (op == "=") else ~self.sql
        return SQL_COMPARISONS[op](self.sql, self.names.constant(constant))

    def among(self, items: Sequence[typed.Constant]) -> ColumnElement[bool]:
        """Test equality with one of the constants."""
        is_equal: ColumnElement[bool] = self.sql == self.names.constants(items, self.kind).any_()
        return is_equal

    def like(self, pattern: typed.Constant) -> ColumnElement[bool]:
        """Test whether it matches the pattern."""
        return self.sql.like(self.names.bind_one(str(pattern.value), TEXT()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataText(Side):
    """A text of metadata. `value`: the indexed part; bounds on it contain every match.

    If the part in the index decides, the row itself is not read.
    """

    value: ColumnElement[Any]

    def against(self, op: typed.Comparison, constant: typed.Constant) -> ColumnElement[bool]:
        text = str(constant.value)
        size = len(text.encode())
        if size <= (long_text.WHOLE_BYTES if op in {"=", "<>"} else _ALIKE_BYTES):
            return SQL_COMPARISONS[op](self.value, self._text(text))
        return and_(SQL_COMPARISONS[op](self.sql, self._text(text)), *self._around(op, text))

    def _around(self, op: typed.Comparison, text: str) -> Sequence[ColumnElement[bool]]:
        match op:
            case "=":
                return [self.value == self._text(long_text.encode(text)[0])]
            case ">" | ">=":
                return [self.value >= self._text(long_text.lower_bound(text))]
            case "<" | "<=":
                return self._below(long_text.upper_bound(text))
            case _:
                return []

    def among(self, items: Sequence[typed.Constant]) -> ColumnElement[bool]:
        texts = [str(item.value) for item in items]
        indexed = [long_text.encode(text) for text in texts]
        candidates: ColumnElement[bool] = (
            self.value == self.names.bind_many([value for value, _ in indexed], TEXT()).any_()
        )
        if all(whole is None for _, whole in indexed):
            return candidates
        return and_(candidates, Side.among(self, items))

    def like(self, pattern: typed.Constant) -> ColumnElement[bool]:
        prefix, alone = like_prefix(str(pattern.value))
        low, high = long_text.prefix_bounds(prefix)
        around = [self.value >= self._text(low), *self._below(high)] if prefix else []
        if alone and low == prefix:
            return and_(true(), *around)
        return and_(*around, Side.like(self, pattern))

    def _below(self, high: str | None) -> Sequence[ColumnElement[bool]]:
        return [] if high is None else [self.value < self._text(high)]

    def _text(self, text: str) -> ColumnElement[Any]:
        return self.names.bind_one(text, TEXT())


@dataclass(frozen=True, slots=True, kw_only=True)
class Double(Side):
    """A double, whose value is the decimal of its shortest spelling; compared as a double.

    The decimals are in the order of the doubles, so a decimal bound is at a double or between two.
    """

    double: ColumnElement[Any]

    @classmethod
    def of(cls, double: ColumnElement[Any], names: Names) -> "Double":
        """Return the side for a column or expression of doubles."""
        return cls("number", cast(cast(double, TEXT), Numeric), names, double=double)

    def against(self, op: typed.Comparison, constant: typed.Constant) -> ColumnElement[bool]:
        exact = Decimal(str(constant.value))
        nearest = float(exact)
        spelt, bound = Decimal(repr(nearest)), self.names.bind_one(nearest, DOUBLE_PRECISION())
        match op:
            case "=":
                return self.double == bound if spelt == exact else self._never
            case "<>":
                return ~self.against("=", constant)
            case "<" | "<=":
                closed = spelt < exact or (spelt == exact and op == "<=")
                return self.double <= bound if closed else self.double < bound
            case _:
                closed = spelt > exact or (spelt == exact and op == ">=")
                return self.double >= bound if closed else self.double > bound

    def among(self, items: Sequence[typed.Constant]) -> ColumnElement[bool]:
        numbers = [Decimal(str(item.value)) for item in items]
        doubles = [float(number) for number in numbers if Decimal(repr(float(number))) == number]
        is_equal: ColumnElement[bool] = self._never
        if doubles:
            is_equal = self.double == self.names.bind_many(doubles, DOUBLE_PRECISION()).any_()
        return is_equal

    @property
    def _never(self) -> ColumnElement[bool]:
        """Return what is false, but NULL if there is no value."""
        return self.double != self.double


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Side):
    """A label. It is compared with a name by its integer, which the index has."""

    number: ColumnElement[Any]

    def against(self, op: typed.Comparison, constant: typed.Constant) -> ColumnElement[bool]:
        if op not in {"=", "<>"}:
            return Side.against(self, op, constant)
        number = self.names.bind_one(self.names.label(str(constant.value)), INTEGER())
        return SQL_COMPARISONS[op](self.number, number)

    def among(self, items: Sequence[typed.Constant]) -> ColumnElement[bool]:
        numbers = sorted({self.names.label(str(item.value)) for item in items})
        is_equal: ColumnElement[bool] = (
            self.number == self.names.bind_many(numbers, INTEGER()).any_()
        )
        return is_equal


def collate_text(sql: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a text that is no column, in code-point order all the same."""
    return cast(sql, TEXT).collate("C")


# Doubles are rounded: a slightly larger box leaves nothing out.
_MORE: Final = 1.000001
_MORE_DEGREES: Final = 1e-6
_BOUNDED: Final = frozenset({"<", "<=", "="})


@dataclass(frozen=True, slots=True, kw_only=True)
class Metres(Double):
    """A distance; if it has an upper bound, an index finds the candidates by a box."""

    point: typed.Distance
    coordinates: Mapping[str, ColumnElement[Any]]

    def against(self, op: typed.Comparison, constant: typed.Constant) -> ColumnElement[bool]:
        comparison = Double.against(self, op, constant)
        if op not in _BOUNDED:
            return comparison
        return and_(*self._box(float(Decimal(str(constant.value)))), comparison)

    def _box(self, metres: float) -> Iterator[ColumnElement[bool]]:
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

    def _within(self, name: str, spans: list[tuple[float, float]]) -> ColumnElement[bool]:
        column, exact = self.coordinates[name], self.names.number
        return or_(*(column.between(exact(low), exact(high)) for low, high in spans))


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
    """Compute haversine distances step by step as Python does, so that the doubles agree."""
    where = rows.coordinates()
    decimals: ColumnElement[Any] = literal_column(str(DECIMALS_OF_DEGREES))
    at = {
        name: func.radians(cast(func.round(sql, decimals), DOUBLE_PRECISION))
        for name, sql in where.items()
    }
    east, north = (
        math.radians(float(round_degrees(degrees))) for degrees in (value.longitude, value.latitude)
    )

    def double(number: float) -> ColumnElement[Any]:
        return rows.names.bind_one(number, DOUBLE_PRECISION())

    up: ColumnElement[Any] = func.sin(
        (double(north) - at["latitude"]) / double(2.0), type_=DOUBLE_PRECISION()
    )
    across: ColumnElement[Any] = func.sin(
        (double(east) - at["longitude"]) / double(2.0), type_=DOUBLE_PRECISION()
    )
    both: ColumnElement[Any] = func.cos(at["latitude"], type_=DOUBLE_PRECISION()) * double(
        math.cos(north)
    )
    share = up * up + both * (across * across)
    angle: ColumnElement[Any] = func.asin(
        func.least(double(1.0), func.sqrt(share)), type_=DOUBLE_PRECISION()
    )
    length = double(2 * EARTH_RADIUS_METRES) * angle
    side = Double.of(length, rows.names)
    return Metres("number", side.sql, rows.names, double=length, point=value, coordinates=where)


def build_side(value: typed.Value, rows: Combination) -> Side:
    """Return the value in SQL, and add the rows that hold it."""
    return _SIDES[type(value)](value, rows)


def _constant(value: typed.Constant, rows: Combination) -> Side:
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
    return _stored(PROPERTIES[value.name], rows.own(), rows, "top_label")


def _column(value: typed.Column, rows: Combination) -> Side:
    return _stored(PREDICTION_COLUMNS[value.name], rows.prediction(), rows, "label")


def _stored(entry: properties.Property, row: Any, rows: Combination, label: str) -> Side:
    assert entry.sql is not None, f"{entry.name} is no single value"
    assert entry.kind != "location", f"{entry.name} is no value to compare"
    sql = entry.sql(row)
    if entry.name == label:
        return Label("string", sql, rows.names, number=row.c[label])
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
        case typed.Applied("power"):
            sql = double(args[0], args[1], rows.names)
        case typed.Applied("^", (_, typed.Constant(value=Decimal() as whole))):
            sql = exact(args[0], int(whole))
        case _:
            sql = _FUNCTIONS[value.function](*args)
    return Side(typed.kind_of(value), sql, rows.names)


def _divided(left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
    # SQLAlchemy gives a custom operator the lowest precedence: a sum on its left needs brackets.
    dividend = left.self_group(against=operators.mul)
    return dividend.op("/", return_type=Numeric())(func.nullif(right, 0))


_FUNCTIONS: Final[Mapping[str, Callable[..., ColumnElement[Any]]]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided},
    "%": lambda left, right: func.mod(left, func.nullif(right, 0), type_=Numeric()),
    "div": lambda left, right: func.div(left, func.nullif(right, 0), type_=Numeric()),
    "casei": lambda text: func.fold_case(text, type_=TEXT()).collate("C"),
    "accenti": lambda text: func.fold_accents(text, type_=TEXT()).collate("C"),
}


def _counted(value: typed.Counted, rows: Combination) -> Side:
    own = rows.own()
    if value.condition is None:
        return Side("number", cast(own.c.prediction_count, Numeric), rows.names)
    row, scan_range = prediction.alias(), rows.scan_range
    assert rows.uid is not None
    matching = (
        select(func.count())
        .select_from(row)
        .where(scan_range.of(row), row.c.uid == rows.uid)
        .where(rows.names.condition_of(value.condition).holds(scan_range, row.c.uid))
        .correlate_except(row)
        .scalar_subquery()
    )
    has_predictions = own.c.prediction_count.is_not(None)
    return Side("number", case((has_predictions, cast(matching, Numeric))), rows.names)


def _truthful(value: typed.PredicateValue, rows: Combination) -> Side:
    uid = rows.own().c.uid if rows.uid is None else rows.uid
    true, false = (
        rows.names.condition_of(value.of, when=when).holds(rows.scan_range, uid)
        for when in (True, False)
    )
    return Side("bool", case((true, literal(True)), (false, literal(False))), rows.names)


_SIDES: Final[Mapping[type[Any], Callable[[Any, Combination], Side]]] = {
    typed.Constant: _constant,
    typed.Metadata: _metadata,
    typed.Property: _property,
    typed.Column: _column,
    typed.Applied: _applied,
    typed.Counted: _counted,
    typed.Distance: compute_metres,
    typed.PredicateValue: _truthful,
}


_ZERO: ColumnElement[Any] = literal_column("0::numeric", Numeric())
_ONE: ColumnElement[Any] = literal_column("1::numeric", Numeric())


def exact(base: ColumnElement[Any], exponent: int) -> ColumnElement[Any]:
    """Multiply an exact power out, because `power` rounds.

    The base is written, and computed, once.
    """
    if exponent == 0:
        return case((base.is_not(None), _ONE))
    if exponent == 1:
        return base
    once = func.unnest(array([base])).table_valued("x", name="once").render_derived()
    number: ColumnElement[Any] = cast(once.c.x, Numeric)
    product = reduce(operator.mul, [number] * exponent)
    return select(product).correlate_except(once).scalar_subquery()


def double(base: ColumnElement[Any], exponent: ColumnElement[Any], names: Names) -> Any:
    """Compute step by step as Python does, so that the doubles agree; both are computed once."""
    lists = array([base]), array([exponent])
    once = func.unnest(*lists).table_valued("x", "y", name="once").render_derived()
    x, y = cast(once.c.x, Numeric), cast(once.c.y, Numeric)
    power = case(
        (and_(y == _ZERO, x.is_not(None)), _ONE),
        (and_(x == _ZERO, y > _ZERO), _ZERO),
        (_is_real(x, y, names), cast(cast(_power(x, y, names), TEXT), Numeric)),
    )
    return select(power).correlate_except(once).scalar_subquery()


def _is_real(x: ColumnElement[Any], y: ColumnElement[Any], names: Names) -> ColumnElement[bool]:
    """Test that it is no root of a negative number, and not too large or small; else false or
    NULL."""
    logarithm = _double(y, MOST_POWER, names) * func.ln(func.abs(_double(x, MOST_DOUBLE, names)))
    small = func.abs(logarithm) <= names.bind_one(MOST_LOGARITHM, DOUBLE_PRECISION())
    return and_(or_(x > _ZERO, y == func.trunc(y)), small)


def _power(x: ColumnElement[Any], y: ColumnElement[Any], names: Names) -> ColumnElement[Any]:
    return func.power(
        _double(x, MOST_DOUBLE, names), _double(y, MOST_POWER, names), type_=DOUBLE_PRECISION()
    )


def _double(number: ColumnElement[Any], most: Decimal, names: Names) -> ColumnElement[Any]:
    """Return NULL for what is no double: the cast would raise."""
    fits = func.abs(number).between(names.number(LEAST_DOUBLE), names.number(most))
    return cast(case((fits, number)), DOUBLE_PRECISION)


# Tests of an inference's location.

# Up to this many areas have an index condition each; more of them share one box around all.
_MOST_BOXES: Final = 8
_Box: TypeAlias = tuple[Any, Any, Any, Any]
"""West, east, south, north."""
_Sql: TypeAlias = ColumnElement[Any]
_Test: TypeAlias = ColumnElement[bool]


def test_location(located: typed.Located, when: bool, rows: Combination) -> Iterator[_Test]:
    """Test that the location is in the relation, or (`when` False) is not."""
    names, at = rows.names, rows.coordinates()
    x, y = at["longitude"], at["latitude"]
    hit = or_(false(), *_in_areas(located, x, y, names), *_at_points(located, x, y, names))
    if when:
        yield _around(located, x, y, names)
    yield hit if when else ~hit


def _in_areas(located: typed.Located, x: _Sql, y: _Sql, names: Names) -> Iterator[_Test]:
    is_open = located.relation == "within"
    others: list[typed.Area] = []
    for area in located.areas:
        if not _is_box(area):
            others.append(area)
            continue
        west, east, south, north = map(names.number, _box(area))
        if is_open:
            yield and_(x > west, x < east, y > south, y < north)
        else:
            yield and_(x >= west, x <= east, y >= south, y <= north)
    if others:
        yield _inside(others, x, y, names, is_open=is_open)


def _at_points(located: typed.Located, x: _Sql, y: _Sql, names: Names) -> Iterator[_Test]:
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
