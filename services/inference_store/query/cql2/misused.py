"""What times and durations are refused with: what is wrong, and how it is written."""

from datetime import datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.iso_durations import Duration, read_duration

from .refused import Refused
from .tree import Named, Node, Operation, Scalar
from .verify import said

_HOUR_AGO: Final = "now() - duration('PT1H')"
_COMPARED: Final = f"received_at > {_HOUR_AGO}"
_CALLED: Final = frozenset({"now", "current_timestamp", "today"})
_SHOWN: Final = 64
"""Characters of a text that is no duration."""


def alone(node: Operation) -> Refused:
    """A duration where a value is expected."""
    return Refused(f"a duration is no time: move a time by it, as in {_HOUR_AGO}", node.at)


def of_duration(node: Operation) -> Refused:
    """What is no duration, inside `duration()`."""
    match node.args:
        case (Scalar(value=str() as text) as written,):
            return _no_duration(text, written)
    message = "duration() takes an ISO 8601 duration in single quotes: duration('PT1H')"
    return Refused(message, node.at)


def _no_duration(text: str, written: Scalar) -> Refused:
    plain = text.lstrip("+-")
    if plain != text and read_duration(plain) is not None:
        message = f"a duration has no sign: subtract it, as in now() - duration('{plain}')"
        return Refused(message, written.at)
    known = (f"duration('{text.upper()}')",) if read_duration(text.upper()) is not None else ()
    said = "an ISO 8601 duration, such as PT15M, PT1H, P1D, P2W or P1M"
    return Refused(f"{text[:_SHOWN]!r} is not {said}", written.at, known)


def misused(
    node: Operation, left: datetime | Duration | None, right: datetime | Duration | None
) -> Refused:
    """An addition or subtraction of a time or a duration that makes no time."""
    if left is None or right is None:
        odd = node.args[0] if left is None else node.args[1]
        return _with(odd, left if right is None else right)
    if isinstance(left, Duration) and isinstance(right, Duration):
        message = "durations move a time one after the other"
        return Refused(f"{message}: now() - duration('P1D') - duration('PT1H')", node.at)
    if isinstance(left, Duration):
        message = f"a duration is subtracted from a time, not a time from it: {_HOUR_AGO}"
        return Refused(message, node.at)
    return Refused(f"two times make no time: compare them, as in {_COMPARED}", node.at)


def _with(odd: Node, other: datetime | Duration | None) -> Refused:
    """What stands beside a time or a duration, and is neither."""
    match odd:
        case Scalar(value=str() as text) if read_duration(text) is not None:
            meant = f"duration('{text}')"
            return Refused(f"a duration is written {meant}", odd.at, (meant,))
        case Scalar(value=Decimal() as number) if isinstance(other, datetime):
            texts = [t for t in (f"P{number}D", f"PT{number}S") if read_duration(t) is not None]
            known = [f"duration('{each}')" for each in texts]
            remedy = " or ".join(known) or "duration('PT1H')"
            return Refused(f"a number has no unit of time: write {remedy}", odd.at, known)
        case Named(name) if name.lower() in _CALLED and isinstance(other, Duration):
            return Refused("the time of the question is written now()", odd.at, ("now()",))
        case Named() if isinstance(other, Duration):
            message = "a duration moves a time that is written out, and this is a name"
            return Refused(f"{message}: move it to the other side, as in {_COMPARED}", odd.at)
    if isinstance(other, Duration):
        message = f"a duration moves a time, and this is {said(odd)}"
        return Refused(f"{message}: write {_HOUR_AGO}", odd.at)
    message = f"a time is moved by a duration, and this is {said(odd)}"
    return Refused(f"{message}: write {_COMPARED}", odd.at)
