"""Filters that find what a figure is of, in CQL2."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from inference_store.inference.events.event import received_at_of
from inference_store.query.aggregates.aggregation import GroupBody
from inference_store.query.aggregates.operands import TIME
from inference_store.query.aggregates.statement import Dimension
from inference_store.query.cql2 import to_text
from inference_store.query.cql2.tree import Instant, Listed, Named, Node, Operation, Scalar

from .evaluation import Axis


def write_all(*tests: Node) -> str:
    """Return the text of a filter that all tests must satisfy."""
    return to_text(tests[0] if len(tests) == 1 else Operation("and", tests))


def test_truth(source: str | None, *of_label: Node) -> Node:
    """Test that there is truth, of the source; `of_label`: with such a label."""
    if source is None:
        return of_label[0] if of_label else Named("has_truth")
    tests = _compare("=", "source", source), *of_label
    return Operation("truth", (tests[0] if len(tests) == 1 else Operation("and", tests),))


def test_label(name: str, axis: Axis, listed: Sequence[Axis]) -> Node:
    """Test that a label is that of a row or column; the `other` one is none of those listed."""
    if axis.label is not None:
        return _compare("=", name, axis.label)
    if axis.kind == "none":
        return Operation("isNull", (Named(name),))
    known = tuple(Scalar(one.label) for one in listed if one.label is not None)
    return Operation("not", (Operation("in", (Named(name), Listed(known))),))


def find_group(
    by: GroupBody, dimension: Dimension, value: Any, source: str | None, *, labels: bool
) -> str | None:
    """Return the filter of the inferences of a group that have truth, or (`labels`) a true label;
    None where there is none: no filter finds the empty sets of one source."""
    operand, bounds = dimension.operand, dimension.by
    if by.is_label or (source is not None and not labels):
        return None
    has_label = Operation(
        "not", (Operation("isNull", (Named("label" if source else "truth_label"),)),)
    )
    there = test_truth(source, *([has_label] if labels else []))
    name = "received_at" if operand == TIME else (by.of or by.histogram.of).name  # type: ignore[union-attr]
    if value is None:
        return write_all(Operation("isNull", (Named(name),)), there)
    if bounds == "value":
        return write_all(_compare("=", name, value), there)
    low = bounds[value - 1] if value > 0 else None
    high = bounds[value] if value < len(bounds) else None
    ends = [(">=", low), ("<", high)]
    tests = [
        _compare(sign, name, received_at_of(end) if operand == TIME else end)  # type: ignore[arg-type]
        for sign, end in ends
        if end is not None
    ]
    return write_all(*tests, there)


def _compare(sign: str, name: str, value: str | Decimal | bool | datetime) -> Node:
    constant = Instant(value) if isinstance(value, datetime) else Scalar(value)
    return Operation(sign, (Named(name), constant))
