"""Refusals of times and durations: the error, and the correct spelling."""

from datetime import datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.iso_durations import Duration, read_duration

from .refusal import Refusal
from .tree import Named, Node, Operation, Scalar
from .verify import describe_kind

_HOUR_AGO: Final = "now() - duration('PT1H')"
_COMPARED: Final = f"received_at > {_HOUR_AGO}"
_CALLED: Final = frozenset({"now", "current_timestamp", "today"})
_SHOWN: Final = 64
"""Characters shown of a text that is not a duration."""


def alone(node: Operation) -> Refusal:
    """Return the refusal of a duration in the place of a value."""
    return Refusal(f"a duration is no time: move a time by it, as in {_HOUR_AGO}", node.at)


def of_duration(node: Operation) -> Refusal:
    """Return the refusal of an argument of `duration()` that is not a duration."""
    match node.args:
        case (Scalar(value=str() as text) as written,):
            return _no_duration(text, written)
    message = "duration() takes an ISO 8601 duration in single quotes: duration('PT1H')"
    return Refusal(message, node.at)


def _no_duration(text: str, written: Scalar) -> Refusal:
    plain = text.lstrip("+-")
    if plain != text and read_duration(plain) is not None:
        message = f"a duration has no sign: subtract it, as in now() - duration('{plain}')"
        return Refusal(message, written.at)
    suggestions = (
        (f"duration('{text.upper()}')",) if read_duration(text.upper()) is not None else ()
    )
    expectation = "an ISO 8601 duration, such as PT15M, PT1H, P1D, P2W or P1M"
    return Refusal(f"{text[:_SHOWN]!r} is not {expectation}", written.at, suggestions)


def misused(
    node: Operation, left: datetime | Duration | None, right: datetime | Duration | None
) -> Refusal:
    """Return the refusal of an addition or subtraction whose result is not a time."""
    if left is None or right is None:
        odd = node.args[0] if left is None else node.args[1]
        return _with(odd, left if right is None else right)
    if isinstance(left, Duration) and isinstance(right, Duration):
        message = "durations move a time one after the other"
        return Refusal(f"{message}: now() - duration('P1D') - duration('PT1H')", node.at)
    if isinstance(left, Duration):
        message = f"a duration is subtracted from a time, not a time from it: {_HOUR_AGO}"
        return Refusal(message, node.at)
    return Refusal(f"two times make no time: compare them, as in {_COMPARED}", node.at)


def _with(odd: Node, other: datetime | Duration | None) -> Refusal:
    """Return the refusal of the other operand of a time or a duration, which is neither."""
    match odd:
        case Scalar(value=str() as text) if read_duration(text) is not None:
            meant = f"duration('{text}')"
            return Refusal(f"a duration is written {meant}", odd.at, (meant,))
        case Scalar(value=Decimal() as number) if isinstance(other, datetime):
            texts = [t for t in (f"P{number}D", f"PT{number}S") if read_duration(t) is not None]
            suggestions = [f"duration('{text_of_duration}')" for text_of_duration in texts]
            remedy = " or ".join(suggestions) or "duration('PT1H')"
            return Refusal(f"a number has no unit of time: write {remedy}", odd.at, suggestions)
        case Named(name) if name.lower() in _CALLED and isinstance(other, Duration):
            return Refusal("the time of the question is written now()", odd.at, ("now()",))
        case Named() if isinstance(other, Duration):
            message = "a duration moves a time that is written out, and this is a name"
            return Refusal(f"{message}: move it to the other side, as in {_COMPARED}", odd.at)
    if isinstance(other, Duration):
        message = f"a duration moves a time, and this is {describe_kind(odd)}"
        return Refusal(f"{message}: write {_HOUR_AGO}", odd.at)
    message = f"a time is moved by a duration, and this is {describe_kind(odd)}"
    return Refusal(f"{message}: write {_COMPARED}", odd.at)
