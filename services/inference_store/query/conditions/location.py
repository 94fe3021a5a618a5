"""Tests of the location: by comparisons of its coordinates for a box, else edge by edge."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, Numeric, and_, column, false, func, or_, select

from inference_store.query.filters.typed import Area, Located
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .condition import Uids
from .names import Names

# Up to this many areas have an index condition each; more of them share one box around all.
_MOST_BOXES = 8
_Box = tuple[Decimal, Decimal, Decimal, Decimal]


@dataclass(frozen=True, slots=True)
class WithinArea:
    """The location has the relation to the areas and points, or (`when` False) has not."""

    located: Located
    when: bool
    names: Names
    kind: str = "place"
    unique: bool = True
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
    """Check whether it is an upright rectangle without holes."""
    west, east, south, north = _box(area)
    corners = [(west, south), (east, south), (east, north), (west, north)]
    ring = [(x, y) for x, y in area.outer]
    around = corners * 2
    turns = [around[n : n + 4] for n in range(4)] + [around[::-1][n : n + 4] for n in range(4)]
    return not area.holes and [*ring[:4]] in turns and ring[4:] == ring[:1]
