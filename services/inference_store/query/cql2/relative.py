"""Relative times: resolves `now() - duration('PT1H')` to the instant at the time of the request.

The result is a tree of the standard: only the parser handles relative times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Final, TypeAlias

from inference_store.inference.iso_durations import Duration, read_duration

from . import tree
from .tree import Instant, Named, Node, Operation, Refusal, Scalar
from .verify import describe_kind, iterate, measure
from .write import to_text

FUNCTIONS: Final = frozenset({"now", "duration"})
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
    operations = (node for node in iterate(root) if isinstance(node, Operation))
    relative = next((node for node in operations if node.op in FUNCTIONS), None)
    if relative is None:
        return root
    if clock.at is None:
        raise Refusal(f"a relative time is not allowed here: {clock.instead}", relative.at)
    measure(root, depth=tree.MOST_DEPTH, nodes=tree.MOST_NODES)
    return _with_instants(root, clock.at)


def resolved_in(root: Node | None) -> Sequence[Resolved]:
    """Return the relative times that a tree had, each once, in their order in the filter."""
    nodes = [] if root is None else [node for node in iterate(root) if isinstance(node, Instant)]
    values = {node.relative: node.value for node in nodes if node.relative is not None}
    return [Resolved(text, at) for text, at in values.items() if isinstance(at, datetime)]


def _with_instants(node: Node, now: datetime) -> Node:
    part = _part(node, now) if isinstance(node, Operation) else None
    if isinstance(part, datetime):
        return Instant(part, node.at, to_text(node))
    if part is not None:
        message = f"a duration is not a time: move a time by it, as in {_HOUR_AGO}"
        raise Refusal(message, node.at)
    return tree.change_inside(node, lambda inner: _with_instants(inner, now))


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
        case (Scalar(value=str() as text) as written,):
            duration = read_duration(text)
        case _:
            message = "duration() takes an ISO 8601 duration in single quotes: duration('PT1H')"
            raise Refusal(message, node.at)
    if duration is not None:
        return duration
    plain, upper = text.lstrip("+-"), text.upper()
    if plain != text and read_duration(plain) is not None:
        message = f"a duration has no sign: subtract it, as in now() - duration('{plain}')"
        raise Refusal(message, written.at)
    meant = [f"duration('{upper}')"] if read_duration(upper) is not None else []
    expectation = "an ISO 8601 duration, such as PT15M, PT1H, P1D, P2W or P1M"
    raise Refusal(f"{text[:64]!r} is not {expectation}", written.at, meant)


def _moved(node: Operation, left: _Part, right: _Part) -> datetime | None:
    match node.op, left, right:
        case _, None, None:
            return None
        case (_, datetime() as at, Duration() as by) | ("+", Duration() as by, datetime() as at):
            try:
                return by.after(at) if node.op == "+" else by.before(at)
            except OverflowError:
                message = f"{to_text(node)} lies outside the years 1 to 9999: take a shorter"
                raise Refusal(f"{message} duration", node.at) from None
    raise _misused(node, left, right)


_HOUR_AGO: Final = "now() - duration('PT1H')"
_COMPARED: Final = f"received_at > {_HOUR_AGO}"
_NO_TIME: Final = {
    (Duration, Duration): "durations move a time one after the other: now() - duration('P1D') - "
    "duration('PT1H')",
    (Duration, datetime): "a duration is subtracted from a time, not a time from it: " + _HOUR_AGO,
    (datetime, datetime): f"two times make no time: compare them, as in {_COMPARED}",
}


def _misused(node: Operation, left: _Part, right: _Part) -> Refusal:
    if left is not None and right is not None:
        return Refusal(_NO_TIME[type(left), type(right)], node.at)
    odd, other = (node.args[0], right) if left is None else (node.args[1], left)
    is_moved, meant = isinstance(other, datetime), list[str]()
    message = f"a time is moved by a duration, and this is {describe_kind(odd)}: write {_COMPARED}"
    match odd:
        case Scalar(value=str() as text) if read_duration(text) is not None:
            meant = [f"duration('{text}')"]
            message = f"a duration is written {meant[0]}"
        case Scalar(value=Decimal() as number) if is_moved:
            texts = [t for t in (f"P{number}D", f"PT{number}S") if read_duration(t) is not None]
            meant = [f"duration('{text}')" for text in texts]
            message = "a number has no unit of time: write "
            message += " or ".join(meant) or "duration('PT1H')"
        case Named(name) if name.lower() == "now" and not is_moved:
            message, meant = "the time of the question is written now()", ["now()"]
        case Named() if not is_moved:
            message = "a duration moves a time that is written out, and this is a name: move it to"
            message += f" the other side, as in {_COMPARED}"
    return Refusal(message, odd.at, meant)
