"""Looking for data in the bodies of a request, within a bound."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from .forms import FORMS

# So often every byte is looked at, and so many bytes a look itself is counted as.
_MOST_LOOKS: Final = 64
_OF_A_LOOK: Final = 16
_ALWAYS_LOOKED_AT: Final = 1 << 20


class Match(NamedTuple):
    """Where bytes stand in a request, and in which form."""

    message: int
    start: int
    end: int
    form: str


class Hole(NamedTuple):
    """Where a datum, or a part of it, stood in a message."""

    start: int
    end: int
    datum: int
    """Its batch index."""
    form: str
    part: tuple[int, int, str] | None = None
    """Start and end in the datum, and how to read what is there; None: all of it."""


class OwnedSpan(NamedTuple):
    """A span of a message that belongs to one inference."""

    start: int
    end: int
    datum: int
    """The batch index of the inference."""


class Search:
    """Finds data in bodies. All of it together looks at each byte so many times at most: a request
    is a stranger's, and may hold thousands of data that are nowhere to be found."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        looks = _MOST_LOOKS * sum(len(body) + _OF_A_LOOK for body in bodies)
        self._left = max(looks, _ALWAYS_LOOKED_AT)
        self._forms = list(FORMS)

    def find(
        self, datum: bytes, position: tuple[int, int], *, back: bool, as_it_is: bool = False
    ) -> Match | None:
        """A datum behind a position, then, with `back`, anywhere; None: not there, or too dear."""
        return self._behind(datum, position, as_it_is) or (
            self._behind(datum, (0, 0), as_it_is) if back and position != (0, 0) else None
        )

    def _behind(self, datum: bytes, position: tuple[int, int], as_it_is: bool) -> Match | None:
        for name in ["bytes"] if as_it_is else self._forms:
            form = FORMS[name](datum)
            match = self._first(form, position) if form else None
            if match is not None and form:
                # the next datum mostly has the same
                self._forms.sort(key=lambda each: each != name)
                return Match(match[0], match[1], match[1] + len(form), name)
        return None

    def _first(self, looked_for: bytes, position: tuple[int, int]) -> tuple[int, int] | None:
        for message in range(position[0], len(self._bodies)):
            if self._left <= 0:
                return None
            body, begin = self._bodies[message], position[1] if message == position[0] else 0
            start = body.find(looked_for, begin)
            self._left -= (len(body) if start < 0 else start) - begin + _OF_A_LOOK
            if start >= 0:
                return message, start
        return None


def add_hole(holes: list[Hole], hole: Hole) -> bool:
    """Put a hole between those that are there, in order; False where one lies over it."""
    at = bisect_left(holes, hole[:2], key=lambda each: each[:2])
    before_it, behind_it = holes[max(0, at - 1) : at], holes[at : at + 1]
    if any(hole.start < each.end and each.start < hole.end for each in (*before_it, *behind_it)):
        return False
    holes.insert(at, hole)
    return True
