"""The temporal functions, as comparisons of the ends of instants and intervals."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from inference_store.query.cql2.tree import Instant, Interval, Named, Node, Operation

from . import operands
from .checking import Checking
from .mismatches import mismatch
from .refusals import meaningless
from .settled import settled
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
    """An end of a span of time. `open`: -1 lies before everything, 1 behind."""

    value: Value | None
    open: int = 0


class Span(NamedTuple):
    """From one end to another; an instant starts and ends at once."""

    start: End
    end: End
    instant: bool = False


def check_temporal_relation(node: Operation, checking: Checking) -> Predicate:
    """A temporal function's comparisons. Raises InvalidFilter, ImpossibleComparison."""
    op = node.op.lower()
    operands.refuse_inside(node, checking)
    one, other = (_span(each, checking) for each in node.args)
    if one.instant and other.instant and op not in _OF_INSTANTS:
        message = f"{node.op} compares intervals; instants compare by = and <"
        raise meaningless(node, checking.source, message)
    if (one.instant or other.instant) and op not in _OF_INSTANTS | _OF_BOTH:
        message = f"{node.op} takes two intervals: INTERVAL('2026-11-01', '2026-11-02')"
        raise meaningless(node, checking.source, message)
    if op in _OF_BOTH and any(_is_many(span) for span in (one, other)):
        raise meaningless(node, checking.source, f"{node.op} takes names that have one value")
    return _FUNCTIONS[op](one, other)


def _is_many(span: Span) -> bool:
    value = span.start.value
    return isinstance(value, Metadata) and value.many


def _span(node: Node, checking: Checking) -> Span:
    if not isinstance(node, Interval):
        end = End(_instant(node, checking))
        return Span(end, end, instant=True)
    start = End(None, -1) if node.start is None else End(_instant(node.start, checking))
    end = End(None, 1) if node.end is None else End(_instant(node.end, checking))
    span = Span(start, end)
    if any(isinstance(each.value, Metadata) and each.value.many for each in (start, end)):
        message = "an interval is made of names that have one value"
        raise meaningless(node, checking.source, message)
    return span


def _instant(node: Node, checking: Checking) -> Value:
    if not isinstance(node, Named | Instant):
        message = "a temporal function takes instants, intervals, and names of instants"
        raise meaningless(node, checking.source, message)
    kinds = operands.possible(node, checking)
    if "timestamp" not in kinds:
        raise mismatch([Interval(None, None, node.at), node], [_TIMESTAMP, kinds], checking)
    return operands.value(node, "timestamp", checking)


_TIMESTAMP: Final = frozenset[Kind]({"timestamp"})


def _compare(left: End, op: Comparison, right: End) -> Predicate:
    """What is compared with an open end is NULL all the same where it has no value."""
    if left.value is not None and right.value is not None:
        return settled(Compared(op, left.value, right.value))
    holds = _TESTS[op](left.open, right.open)
    value = left.value or right.value
    if value is None:
        return Fixed(holds)
    known = settled(Compared("=", value, value))
    return known if holds else settled(Not(known))


_TESTS: Final[Mapping[Comparison, Callable[[int, int], bool]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _all(*parts: Predicate) -> Predicate:
    return settled(And(parts))


def _before(one: Span, other: Span) -> Predicate:
    return _compare(one.end, "<", other.start)


def _after(one: Span, other: Span) -> Predicate:
    return _before(other, one)


def _intersects(one: Span, other: Span) -> Predicate:
    if other.instant:
        one, other = other, one
    bounds = other.start.value, other.end.value
    if one.instant and one.start.value is not None and bounds[0] is not None and bounds[1]:
        # As one predicate: of several instants one lies between.
        return settled(Between(one.start.value, bounds[0], bounds[1]))
    return _all(_compare(one.start, "<=", other.end), _compare(one.end, ">=", other.start))


def _disjoint(one: Span, other: Span) -> Predicate:
    return settled(Or((_before(one, other), _after(one, other))))


def _equals(one: Span, other: Span) -> Predicate:
    if one.instant and other.instant:
        return _compare(one.start, "=", other.start)
    return _all(_compare(one.start, "=", other.start), _compare(one.end, "=", other.end))


def _contains(one: Span, other: Span) -> Predicate:
    return _all(_compare(one.start, "<", other.start), _compare(one.end, ">", other.end))


def _finishes(one: Span, other: Span) -> Predicate:
    return _all(_compare(one.start, ">", other.start), _compare(one.end, "=", other.end))


def _meets(one: Span, other: Span) -> Predicate:
    return _compare(one.end, "=", other.start)


def _overlaps(one: Span, other: Span) -> Predicate:
    return _all(
        _compare(one.start, "<", other.start),
        _compare(one.end, ">", other.start),
        _compare(one.end, "<", other.end),
    )


def _starts(one: Span, other: Span) -> Predicate:
    return _all(_compare(one.start, "=", other.start), _compare(one.end, "<", other.end))


_OF_INSTANTS: Final = frozenset({"t_after", "t_before", "t_disjoint", "t_equals", "t_intersects"})
_OF_BOTH: Final = frozenset({"t_contains", "t_during"})
_FUNCTIONS: Final[Mapping[str, Callable[[Span, Span], Predicate]]] = {
    "t_after": _after,
    "t_before": _before,
    "t_contains": _contains,
    "t_disjoint": _disjoint,
    "t_during": lambda one, other: _contains(other, one),
    "t_equals": _equals,
    "t_finishedby": lambda one, other: _finishes(other, one),
    "t_finishes": _finishes,
    "t_intersects": _intersects,
    "t_meets": _meets,
    "t_metby": lambda one, other: _meets(other, one),
    "t_overlappedby": lambda one, other: _overlaps(other, one),
    "t_overlaps": _overlaps,
    "t_startedby": lambda one, other: _starts(other, one),
    "t_starts": _starts,
}
TEMPORAL_FUNCTIONS: Final = frozenset(_FUNCTIONS)
