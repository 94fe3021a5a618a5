"""Relative times: resolves `now() - duration('PT1H')` to the instant at the time of the request.

The result is a tree of the standard: only the parser handles relative times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Final, TypeAlias

from inference_store.inference.iso_durations import Duration, read_duration

from . import caps
from .refusal import Refusal
from .time_refusals import alone, misused, of_duration
from .tree import Instant, Interval, Listed, Node, Operation, Scalar
from .verify import inside, measure
from .write_text import to_text

_NOW, _DURATION = "now", "duration"
FUNCTIONS: Final = frozenset({_NOW, _DURATION})
_Part: TypeAlias = datetime | Duration | None
"""The kind of a node: an instant, a duration, or neither."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The value of `now()`. `at` None: it is not allowed here, and `instead` says what to write."""

    at: datetime | None = None
    instead: str = "write the time itself, as in TIMESTAMP('2026-11-01T00:00:00Z')"


NO_CLOCK: Final = Clock()


@dataclass(frozen=True, slots=True)
class Resolved:
    """A relative time as it was written, and the instant that it was resolved to."""

    expression: str
    instant: datetime


def resolve(root: Node, clock: Clock) -> Node:
    """Return the tree with instants instead of its relative times. Raises Refusal."""
    relative = next((node for node in _every(root) if _is_one(node)), None)
    if relative is None:
        return root
    if clock.at is None:
        raise Refusal(f"a relative time cannot stand here: {clock.instead}", relative.at)
    measure(root, depth=caps.DEPTH, nodes=caps.NODES)
    return _with_instants(root, clock.at)


def resolved_in(root: Node | None) -> Sequence[Resolved]:
    """Return the relative times that a tree had, each once, in their order in the filter."""
    instants = [] if root is None else [node for node in _every(root) if isinstance(node, Instant)]
    values = {node.relative: node.value for node in instants if node.relative is not None}
    return [Resolved(text, at) for text, at in values.items() if isinstance(at, datetime)]


def _every(root: Node) -> Iterator[Node]:
    """Yield every node, in the order in which they are written. Never recurses."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(inside(node))))


def _is_one(node: Node) -> bool:
    return isinstance(node, Operation) and node.op in FUNCTIONS


def _with_instants(node: Node, now: datetime) -> Node:
    match node:
        case Operation(args=args):
            part = _part(node, now)
            if isinstance(part, datetime):
                return Instant(part, node.at, to_text(node))
            if part is not None:
                raise alone(node)
            return replace(node, args=tuple(_with_instants(arg, now) for arg in args))
        case Listed(items=items):
            return replace(node, items=tuple(_with_instants(item, now) for item in items))
        case Interval(start, end):
            return replace(node, start=_bound(start, now), end=_bound(end, now))
    return node


def _bound(node: Node | None, now: datetime) -> Node | None:
    return None if node is None else _with_instants(node, now)


def _part(node: Node, now: datetime) -> _Part:
    match node:
        case Instant(value=datetime() as at):
            return at
        case Instant(value=day):
            return datetime.combine(day, time.min, UTC)
        case Operation(op="now", args=args):
            if args:
                raise Refusal("now() takes no arguments: now() - duration('PT1H')", args[0].at)
            return now
        case Operation(op="duration"):
            return _duration(node)
        case Operation(op="+" | "-", args=(left, right)):
            return _moved(node, _part(left, now), _part(right, now))
    return None


def _duration(node: Operation) -> Duration:
    match node.args:
        case (Scalar(value=str() as text),):
            duration = read_duration(text)
            if duration is not None:
                return duration
    raise of_duration(node)


def _moved(node: Operation, left: _Part, right: _Part) -> datetime | None:
    """Return an instant moved by a duration; None: it is ordinary arithmetic."""
    match node.op, left, right:
        case _, None, None:
            return None
        case _, datetime() as at, Duration() as by:
            pass
        case "+", Duration() as by, datetime() as at:
            pass
        case _:
            raise misused(node, left, right)
    try:
        return by.after(at) if node.op == "+" else by.before(at)
    except OverflowError:
        message = f"{to_text(node)} lies outside the years 1 to 9999: take a shorter duration"
        raise Refusal(message, node.at) from None
