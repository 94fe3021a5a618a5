"""Times in filters: intervals, and how they lie to each other."""

from collections.abc import Callable
from datetime import date, datetime
from typing import Final, TypeAlias

from inference_store_client.instants import format_instant

from .expression import Condition, Value
from .nodes import Node, Tree, make_operation

Time: TypeAlias = Value | Node | datetime | date
Bound: TypeAlias = Value | datetime | date | str | None
Relation: TypeAlias = Callable[[Time, Time], Condition]


def interval(start: Bound, end: Bound) -> Node:
    """Make an interval. A bound is an instant, a name, or None for an open end."""
    return Node({"interval": [_make_bound(start), _make_bound(end)]})


def _make_bound(bound: Bound) -> Tree:
    match bound:
        case None:
            return ".."
        case Node():
            return bound.tree
        case datetime():
            return format_instant(bound)
        case date():
            return bound.isoformat()
    return bound


def _relation(op: str) -> Relation:
    def compare(left: Time, right: Time) -> Condition:
        return Condition(make_operation(op, left, right))

    compare.__doc__ = f"Whether `{op}` holds of two instants or intervals."
    return compare


t_after: Final = _relation("t_after")
t_before: Final = _relation("t_before")
t_contains: Final = _relation("t_contains")
t_disjoint: Final = _relation("t_disjoint")
t_during: Final = _relation("t_during")
t_equals: Final = _relation("t_equals")
t_finished_by: Final = _relation("t_finishedBy")
t_finishes: Final = _relation("t_finishes")
t_intersects: Final = _relation("t_intersects")
t_meets: Final = _relation("t_meets")
t_met_by: Final = _relation("t_metBy")
t_overlapped_by: Final = _relation("t_overlappedBy")
t_overlaps: Final = _relation("t_overlaps")
t_started_by: Final = _relation("t_startedBy")
t_starts: Final = _relation("t_starts")
