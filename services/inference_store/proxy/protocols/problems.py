"""What could not be read of an exchange: a sentence for people, and its reasons for the store."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.proxy.exchange import Body

Reason: TypeAlias = tuple[CaptureSide, CaptureKind]
"""What is wrong with which side: an entry of `CAPTURE_PROBLEMS`."""
NAMES: Final[dict[CaptureSide, str]] = {"request": "the request", "response": "the answer"}
"""What sentences call the two sides."""
_MOST_SENTENCES: Final = 8


class Problem(str):
    """A sentence and its reasons."""

    __slots__ = ("reasons",)
    reasons: Sequence[Reason]

    def __new__(cls, sentence: str, *reasons: Reason) -> "Problem":
        """`reasons`: one of each thing that the sentence tells of."""
        made = super().__new__(cls, sentence)
        made.reasons = reasons
        return made


def joined(problems: Iterable[Problem | None], most: int = _MOST_SENTENCES) -> Problem | None:
    """Problems in one, each once; None where there is none. The first few sentences tell, and all
    reasons count."""
    found = list(dict.fromkeys(each for each in problems if each))
    if not found:
        return None
    reasons = dict.fromkeys(reason for each in found for reason in each.reasons)
    return Problem("; ".join(found[:most]), *reasons)


def missing(body: Body, side: CaptureSide, sentence: str) -> Problem | None:
    """The problem of a body of which parts are missing; None: it is whole."""
    return None if body.whole else Problem(sentence, *lacks(body, side))


def lacks(body: Body, side: CaptureSide) -> list[Reason]:
    """What is missing of a body. A call without any answer has failed, and lacks nothing."""
    if body.gap is None or (side == "response" and not body.size):
        return []
    return [(side, body.gap)]
