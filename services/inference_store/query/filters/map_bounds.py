"""Refuses literal coordinates off the map."""

from typing import Any

from inference_store.inference.metadata import COORDINATES
from inference_store.query.cql2.tree import Node

from .facts import Point
from .filter_check import FilterCheck
from .refusals import impossible, meaningless
from .typed import Constant

_SWAPPED = "longitude and latitude may be swapped"


def point_of(coordinates: Any, node: Node, checking: FilterCheck) -> Point:
    """Return longitude and latitude of a position. Raises InvalidFilter if it is off the map."""
    longitude, latitude = coordinates[:2]
    if not _is_on_map(longitude, latitude):
        message = (
            f"({longitude} {latitude}) lies off the map: the longitude comes first, from -180 to "
            "180, then the latitude, from -90 to 90"
        )
        if _is_on_map(latitude, longitude):
            message += f"; {_SWAPPED}"
        raise meaningless(node, checking.source, message)
    return longitude, latitude


def _is_on_map(longitude: Any, latitude: Any) -> bool:
    most = COORDINATES
    return bool(abs(longitude) <= most["longitude"] and abs(latitude) <= most["latitude"])


def refuse_off_map(name: str, constant: Constant, node: Node, checking: FilterCheck) -> None:
    """Raise ImpossibleComparison for degrees that the coordinate never has, unless an inference of
    the requested models was sent with such a value."""
    degrees: Any = constant.value
    most = COORDINATES[name]
    if abs(degrees) <= most or checking.keys[name].off_map:
        return
    message = f"a {name} is from -{most} to {most}, and {degrees} is none"
    if abs(degrees) <= max(COORDINATES.values()):
        message += f": {_SWAPPED}"
    raise impossible(node, checking.source, message)
