"""Expands the temporal functions to comparisons of the ends of instants and intervals."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from inference_store.query.cql2.tree import Instant, Interval, Named, Node, Operation

from . import operands
from .constant_predicates import settle
from .filter_check import FilterCheck
from .mismatches import mismatch
from .refusals import meaningless
from .typed import (
    And,
    Between,
    Compared,
    Comparison,
    Fixed,
    Kind,
    Metadata,
    Not,
    Or,
    Predicate,
    Value,
)


class End(NamedTuple):
    """An end of a span of time. `open`: -1 is before all instants, 1 after them."""

    value: Value | None
    open: int = 0


class Span(NamedTuple):
    """A span of time; an instant is its own start and end."""

    start: End
    end: End
    instant: bool = False


def check_temporal_relation(node: Operation, checking: FilterCheck) -> Predicate:
    """Return a temporal function's comparisons. Raises InvalidFilter, ImpossibleComparison."""
    op = node.op.lower()
    operands.refuse_inside(node, checking)
    left, right = (_span(arg, checking) for arg in node.args)
    if left.instant and right.instant and op not in _OF_INSTANTS:
        message = f"{node.op} compares intervals; instants compare by = and <"
        raise meaningless(node, checking.source, message)
    if (left.instant or right.instant) and op not in _OF_INSTANTS | _OF_BOTH:
        message = f"{node.op} takes two intervals: INTERVAL('2026-11-01', '2026-11-02')"
        raise meaningless(node, checking.source, message)
    if op in _OF_BOTH and any(_is_many(span) for span in (left, right)):
        raise meaningless(node, checking.source, f"{node.op} takes names that have one value")
    return _FUNCTIONS[op](left, right)


def _is_many(span: Span) -> bool:
    value = span.start.value
    return isinstance(value, Metadata) and value.many


def _span(node: Node, checking: FilterCheck) -> Span:
    if not isinstance(node, Interval):
        end = End(_instant(node, checking))
        return Span(end, end, instant=True)
    start = End(None, -1) if node.start is None else End(_instant(node.start, checking))
    end = End(None, 1) if node.end is None else End(_instant(node.end, checking))
    span = Span(start, end)
    if any(
        isinstance(end_of_span.value, Metadata) and end_of_span.value.many
        for end_of_span in (start, end)
    ):
        message = "an interval is made of names that have one value"
        raise meaningless(node, checking.source, message)
    return span


def _instant(node: Node, checking: FilterCheck) -> Value:
    if not isinstance(node, Named | Instant):
        message = "a temporal function takes instants, intervals, and names of instants"
        raise meaningless(node, checking.source, message)
    kinds = operands.possible(node, checking)
    if "timestamp" not in kinds:
        raise mismatch([Interval(None, None, node.at), node], [_TIMESTAMP, kinds], checking)
    return operands.value(node, "timestamp", checking)


_TIMESTAMP: Final = frozenset[Kind]({"timestamp"})


def _compare(left: End, op: Comparison, right: End) -> Predicate:
    """Return NULL if the compared value is missing, even with an open end."""
    if left.value is not None and right.value is not None:
        return settle(Compared(op, left.value, right.value))
    holds = _TESTS[op](left.open, right.open)
    value = left.value or right.value
    if value is None:
        return Fixed(holds)
    equality = settle(Compared("=", value, value))
    return equality if holds else settle(Not(equality))


_TESTS: Final[Mapping[Comparison, Callable[[int, int], bool]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _all(*parts: Predicate) -> Predicate:
    return settle(And(parts))


def _before(left: Span, right: Span) -> Predicate:
    return _compare(left.end, "<", right.start)


def _after(left: Span, right: Span) -> Predicate:
    return _before(right, left)


def _intersects(left: Span, right: Span) -> Predicate:
    if right.instant:
        left, right = right, left
    bounds = right.start.value, right.end.value
    if left.instant and left.start.value is not None and bounds[0] is not None and bounds[1]:
        # One predicate: if there are several instants, the same one must satisfy both bounds.
        return settle(Between(left.start.value, bounds[0], bounds[1]))
    return _all(_compare(left.start, "<=", right.end), _compare(left.end, ">=", right.start))


def _disjoint(left: Span, right: Span) -> Predicate:
    return settle(Or((_before(left, right), _after(left, right))))


def _equals(left: Span, right: Span) -> Predicate:
    if left.instant and right.instant:
        return _compare(left.start, "=", right.start)
    return _all(_compare(left.start, "=", right.start), _compare(left.end, "=", right.end))


def _contains(left: Span, right: Span) -> Predicate:
    return _all(_compare(left.start, "<", right.start), _compare(left.end, ">", right.end))


def _finishes(left: Span, right: Span) -> Predicate:
    return _all(_compare(left.start, ">", right.start), _compare(left.end, "=", right.end))


def _meets(left: Span, right: Span) -> Predicate:
    return _compare(left.end, "=", right.start)


def _overlaps(left: Span, right: Span) -> Predicate:
    return _all(
        _compare(left.start, "<", right.start),
        _compare(left.end, ">", right.start),
        _compare(left.end, "<", right.end),
    )


def _starts(left: Span, right: Span) -> Predicate:
    return _all(_compare(left.start, "=", right.start), _compare(left.end, "<", right.end))


_OF_INSTANTS: Final = frozenset({"t_after", "t_before", "t_disjoint", "t_equals", "t_intersects"})
_OF_BOTH: Final = frozenset({"t_contains", "t_during"})
_FUNCTIONS: Final[Mapping[str, Callable[[Span, Span], Predicate]]] = {
    "t_after": _after,
    "t_before": _before,
    "t_contains": _contains,
    "t_disjoint": _disjoint,
    "t_during": lambda left, right: _contains(right, left),
    "t_equals": _equals,
    "t_finishedby": lambda left, right: _finishes(right, left),
    "t_finishes": _finishes,
    "t_intersects": _intersects,
    "t_meets": _meets,
    "t_metby": lambda left, right: _meets(right, left),
    "t_overlappedby": lambda left, right: _overlaps(right, left),
    "t_overlaps": _overlaps,
    "t_startedby": lambda left, right: _starts(right, left),
    "t_starts": _starts,
}
TEMPORAL_FUNCTIONS: Final = frozenset(_FUNCTIONS)
