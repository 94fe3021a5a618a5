"""Problems of reading an exchange: a sentence for people, and reasons for the store."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.proxy.exchange import Body

Reason: TypeAlias = tuple[CaptureSide, CaptureKind]
"""A side and its problem: an entry of `CAPTURE_PROBLEMS`."""
NAMES: Final[dict[CaptureSide, str]] = {"request": "the request", "response": "the answer"}
"""The names of the two sides in sentences."""
_MOST_SENTENCES: Final = 8


class Problem(str):
    """A sentence and its reasons."""

    __slots__ = ("reasons",)
    reasons: Sequence[Reason]

    def __new__(cls, sentence: str, *reasons: Reason) -> "Problem":
        """`reasons`: one for each problem in the sentence."""
        problem = super().__new__(cls, sentence)
        problem.reasons = reasons
        return problem


def join_problems(
    problems: Iterable[Problem | None], most: int = _MOST_SENTENCES
) -> Problem | None:
    """Join problems to one, without repetitions; None if there is none. It has the first few
    sentences, and all reasons."""
    distinct = list(dict.fromkeys(problem for problem in problems if problem))
    if not distinct:
        return None
    reasons = dict.fromkeys(reason for problem in distinct for reason in problem.reasons)
    return Problem("; ".join(distinct[:most]), *reasons)


def describe_missing(body: Body, side: CaptureSide) -> Problem | None:
    """Return the problem of a body with missing parts; None if it is whole."""
    size = sum(map(len, body.parts))
    sentence = f"of {NAMES[side]}'s {body.size} bytes only {size} are there"
    return None if body.whole else Problem(sentence, *list_gaps(body, side))


def list_gaps(body: Body, side: CaptureSide) -> list[Reason]:
    """Return the reasons of a body with missing parts. A call without any answer failed, and has
    none."""
    if body.gap is None or (side == "response" and not body.size):
        return []
    return [(side, body.gap)]
