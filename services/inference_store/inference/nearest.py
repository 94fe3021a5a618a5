"""The names spelt most like one that is not there, for refusals and warnings.

It runs on the event loop, beside all other requests: so names are short and few, and the scorer
is a cheap one. A name that is longer than any that is meant gets no suggestion.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

LONGEST: Final = 256
"""Characters of a name that is compared."""
MOST_COMPARED: Final = 10_000
"""Names that one is compared with."""
MOST_TOLD: Final = 8
"""Names for which the nearest are looked up; of the others their number is told."""
_ALIKE: Final = 0.4


def nearest(name: str, known: Iterable[str], *, limit: int = 5) -> list[str]:
    """Up to `limit` of the known names, the most alike first. Of few all are told, of many those
    that are alike, if any."""
    # With the first name that is not there.
    from rapidfuzz import process  # noqa: PLC0415
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415

    if len(name) > LONGEST:
        return []
    short = list(islice((each for each in known if len(each) <= LONGEST), MOST_COMPARED))
    least = _ALIKE if len(short) > limit else 0.0
    alike = process.extract(
        name, short, scorer=Levenshtein.normalized_similarity, score_cutoff=least, limit=limit
    )
    return [match for match, _, _ in alike]


class NotThere(ValueError):
    """A name that there is none of. `known`: those that there are, the most alike first."""

    def __init__(
        self, told: str, name: str, known: Sequence[str], *, near: Sequence[str] | None = None
    ) -> None:
        alike = nearest(name, known) if near is None else near
        super().__init__(f"{told} {shortened(name)}; {told_of(alike, known)}")
        self.known = tuple(dict.fromkeys((*alike, *known)))


def told_of(near: Sequence[str], known: Sequence[str]) -> str:
    """The nearest and all that are known: the rest of a refusal's sentence."""
    said = f"the nearest are {', '.join(near)}; " if near else ""
    return f"{said}known are {', '.join(known)}"


def each_told(names: Sequence[str], told: Callable[[str], str]) -> list[str]:
    """A warning for each of the first names, and one that counts the rest."""
    said = [told(name) for name in names[:MOST_TOLD]]
    more = len(names) - len(said)
    return [*said, f"And {more:,} more are not there."] if more else said


def shortened(name: str) -> str:
    """The name, quoted, as far as a warning repeats it."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}…")
