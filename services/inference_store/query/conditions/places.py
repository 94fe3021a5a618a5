"""Tests of an inference's location."""

from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Numeric, and_, column, false, func, or_, select

from inference_store.query.filters.typed import Area, Located

from .combination import Combination, Names

# Up to this many areas have an index condition each; more of them share one box around all.
_MOST_BOXES: Final = 8
_Box: TypeAlias = tuple[Any, Any, Any, Any]
"""West, east, south, north."""
_Sql: TypeAlias = ColumnElement[Any]
_Test: TypeAlias = ColumnElement[bool]


def test_location(located: Located, when: bool, rows: Combination) -> Iterator[_Test]:
    """Test that the location is in the relation, or (`when` False) is not."""
    names, at = rows.names, rows.coordinates()
    x, y = at["longitude"], at["latitude"]
    hit = or_(false(), *_in_areas(located, x, y, names), *_at_points(located, x, y, names))
    if when:
        yield _around(located, x, y, names)
    yield hit if when else ~hit


def _in_areas(located: Located, x: _Sql, y: _Sql, names: Names) -> Iterator[_Test]:
    is_open = located.relation == "within"
    others: list[Area] = []
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


def _at_points(located: Located, x: _Sql, y: _Sql, names: Names) -> Iterator[_Test]:
    if located.points:
        points = _unnested("point", names, *zip(*located.points, strict=True))
        equal = select(points.c.a).where(points.c.a == x, points.c.b == y)
        yield equal.correlate_except(points).exists()


def _around(located: Located, x: _Sql, y: _Sql, names: Names) -> _Test:
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


def _inside(areas: list[Area], x: _Sql, y: _Sql, names: Names, *, is_open: bool) -> _Test:
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


def _box(area: Area) -> _Box:
    corners = [corner for ring in (area.outer, *area.holes) for corner in ring]
    xs, ys = zip(*corners, strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def _is_box(area: Area) -> bool:
    west, east, south, north = _box(area)
    corners = {(west, south), (east, south), (east, north), (west, north)}
    is_straight = all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(area.outer))
    return not area.holes and len(area.outer) == 5 and {*area.outer} == corners and is_straight
