"""Metres from the inference's location to a point, and the box around a circle."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, cast, func, literal_column, or_
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION

from inference_store.query.filters.geometry import DECIMALS_OF_DEGREES, EARTH_RADIUS_METRES, rounded
from inference_store.query.filters.typed import Comparison, Constant, Distance

from .combination import Combination
from .sides import Double

# Doubles are rounded: a slightly larger box leaves nothing out.
_MORE: Final = 1.000001
_MORE_DEGREES: Final = 1e-6
_BOUNDED: Final = frozenset({"<", "<=", "="})


@dataclass(frozen=True, slots=True, kw_only=True)
class Metres(Double):
    """A distance; if it has an upper bound, an index finds the candidates by a box."""

    point: Distance
    coordinates: Mapping[str, ColumnElement[Any]]

    def against(self, op: Comparison, constant: Constant) -> ColumnElement[bool]:
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


def compute_metres(value: Distance, rows: Combination) -> Metres:
    """Compute haversine distances step by step as Python does, so that the doubles agree."""
    where = rows.coordinates()
    at = {name: func.radians(_degrees(sql)) for name, sql in where.items()}
    east, north = (
        math.radians(float(rounded(degrees))) for degrees in (value.longitude, value.latitude)
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


def _degrees(number: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(func.round(number, literal_column(str(DECIMALS_OF_DEGREES))), DOUBLE_PRECISION)
