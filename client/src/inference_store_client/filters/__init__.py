"""Filters: expressions of Python, or CQL2 as text or JSON."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from .expression import Condition, Expression, Value
from .functions import (
    a_contained_by,
    a_contains,
    a_equals,
    a_overlaps,
    accenti,
    casei,
    count_predictions,
    distance,
    div,
    duration,
    now,
    prediction,
    sent,
)
from .geometries import bbox, point, polygon, s_disjoint, s_intersects, s_within
from .names import Names, field, meta, predicted
from .times import (
    interval,
    t_after,
    t_before,
    t_contains,
    t_disjoint,
    t_during,
    t_equals,
    t_finished_by,
    t_finishes,
    t_intersects,
    t_meets,
    t_met_by,
    t_overlapped_by,
    t_overlaps,
    t_started_by,
    t_starts,
)

__all__ = [
    "Condition",
    "Expression",
    "Filter",
    "Names",
    "Value",
    "a_contained_by",
    "a_contains",
    "a_equals",
    "a_overlaps",
    "accenti",
    "bbox",
    "casei",
    "count_predictions",
    "distance",
    "div",
    "duration",
    "encode_filter",
    "field",
    "interval",
    "meta",
    "now",
    "point",
    "polygon",
    "predicted",
    "prediction",
    "s_disjoint",
    "s_intersects",
    "s_within",
    "sent",
    "t_after",
    "t_before",
    "t_contains",
    "t_disjoint",
    "t_during",
    "t_equals",
    "t_finished_by",
    "t_finishes",
    "t_intersects",
    "t_meets",
    "t_met_by",
    "t_overlapped_by",
    "t_overlaps",
    "t_started_by",
    "t_starts",
]

Filter: TypeAlias = Expression | str | Mapping[str, Any]
"""An expression, CQL2-Text, or CQL2-JSON."""


def encode_filter(filter: Filter) -> dict[str, Any]:
    """Return the members of a request's body for a filter."""
    if isinstance(filter, str):
        return {"filter": filter, "filter_lang": "cql2-text"}
    tree = filter.tree if isinstance(filter, Expression) else dict(filter)
    return {"filter": tree, "filter_lang": "cql2-json"}
