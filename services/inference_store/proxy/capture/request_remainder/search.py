"""Searches the bodies of a request for data, with bounded effort."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from .forms import FORMS

# How often every byte is searched at most, and how many bytes a search itself counts as.
_MOST_PASSES: Final = 64
_SEARCH_COST: Final = 16
_LEAST_EFFORT: Final = 1 << 20


class Match(NamedTuple):
    """A position of bytes in a request, and their form."""

    message: int
    start: int
    end: int
    form: str


class Hole(NamedTuple):
    """The span of a datum, or a part of it, in a message."""

    start: int
    end: int
    datum: int
    """Its batch index."""
    form: str
    part: tuple[int, int, str] | None = None
    """The start and end in the datum, and the reading of these bytes; None for the whole datum."""


class OwnedSpan(NamedTuple):
    """A span of a message that belongs to one inference."""

    start: int
    end: int
    datum: int
    """The batch index of the inference."""


class Search:
    """Finds data in bodies. The effort is bounded: a request is untrusted, and may have thousands
    of data that are not in it."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        effort = _MOST_PASSES * sum(len(body) + _SEARCH_COST for body in bodies)
        self._effort_left = max(effort, _LEAST_EFFORT)
        self._forms = list(FORMS)

    def find(
        self, datum: bytes, position: tuple[int, int], *, back: bool, unchanged: bool = False
    ) -> Match | None:
        """Find a datum after a position, then, with `back`, anywhere; None if it is not there, or
        the effort is used up."""
        return self._find_after(datum, position, unchanged) or (
            self._find_after(datum, (0, 0), unchanged) if back and position != (0, 0) else None
        )

    def _find_after(self, datum: bytes, position: tuple[int, int], unchanged: bool) -> Match | None:
        for name in ["bytes"] if unchanged else self._forms:
            form = FORMS[name](datum)
            match = self._find_first(form, position) if form else None
            if match is not None and form:
                # the next datum mostly has the same form
                self._forms.sort(key=lambda other: other != name)
                return Match(match[0], match[1], match[1] + len(form), name)
        return None

    def _find_first(self, form: bytes, position: tuple[int, int]) -> tuple[int, int] | None:
        for message in range(position[0], len(self._bodies)):
            if self._effort_left <= 0:
                return None
            body, begin = self._bodies[message], position[1] if message == position[0] else 0
            start = body.find(form, begin)
            self._effort_left -= (len(body) if start < 0 else start) - begin + _SEARCH_COST
            if start >= 0:
                return message, start
        return None


def add_hole(holes: list[Hole], hole: Hole) -> bool:
    """Insert a hole in order; return False if it overlaps another."""
    at = bisect_left(holes, hole[:2], key=lambda other: other[:2])
    previous, following = holes[max(0, at - 1) : at], holes[at : at + 1]
    neighbours = (*previous, *following)
    if any(hole.start < other.end and other.start < hole.end for other in neighbours):
        return False
    holes.insert(at, hole)
    return True
