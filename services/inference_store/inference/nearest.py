"""Finds the names that are spelt most like an unknown one, for refusals and warnings.

It runs on the event loop, beside all other requests: so names are short and few, and the scorer is
cheap. A name that is longer than any plausible one gets no suggestion.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

LONGEST: Final = 256
"""The most characters of a name that is compared."""
MOST_COMPARED: Final = 10_000
"""The most names that a name is compared with."""
MOST_WARNED: Final = 8
"""The most names for which the nearest are looked up; the others are only counted."""
_ALIKE: Final = 0.4


def nearest(name: str, names: Iterable[str], *, limit: int = 5) -> list[str]:
    """Return up to `limit` of the known names, the most similar first. Few names are all returned;
    of many only the similar ones, if any. Case does not count."""
    # Imported with the first unknown name.
    from rapidfuzz import process  # noqa: PLC0415
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415

    if len(name) > LONGEST:
        return []
    short = list(
        islice((candidate for candidate in names if len(candidate) <= LONGEST), MOST_COMPARED)
    )
    least = _ALIKE if len(short) > limit else 0.0
    alike = process.extract(
        *(name, short),
        scorer=Levenshtein.normalized_similarity,
        processor=str.casefold,
        score_cutoff=least,
        limit=limit,
    )
    return [match for match, _, _ in alike]


class UnknownName(ValueError):
    """An unknown name. `known`: the known ones, the most similar first; `field`: of the body that
    is wrong, if it is a field of that."""

    def __init__(
        self,
        beginning: str,
        name: str,
        known_names: Sequence[str],
        *,
        near: Sequence[str] | None = None,
        field: str | None = None,
    ) -> None:
        alike = nearest(name, known_names) if near is None else near
        super().__init__(f"{beginning} {shortened(name)}; {describe_known(alike, known_names)}")
        self.field = field
        self.known = tuple(dict.fromkeys((*alike, *known_names)))


def name_nearest(near: Sequence[str]) -> str:
    """Return a clause with the nearest names, of which there is one at least."""
    return f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"


def suggest(near: Sequence[str]) -> str:
    """Return a sentence with the nearest names, and a space before it; nothing without any."""
    return f" T{name_nearest(near)[1:]}." if near else ""


def describe_known(near: Sequence[str], known_names: Sequence[str]) -> str:
    """Return the rest of a refusal's sentence, with the nearest and all known names."""
    suggestion = f"{name_nearest(near)}; " if near else ""
    return f"{suggestion}known are {', '.join(known_names)}"


def describe_nearest(near: Sequence[str], known_names: Sequence[str]) -> str:
    """Return the rest of a refusal's sentence, with the nearest names, or all if none is alike."""
    return name_nearest(near) if near else describe_known((), known_names)


def describe_alike(near: Sequence[str]) -> str:
    """Return the rest of a refusal's sentence, with the nearest names."""
    return name_nearest(near) if near else "no other name is spelled like it"


def list_warnings(beginning: str, names: Sequence[str], known_names: Collection[str]) -> list[str]:
    """Return a warning for each of the first unknown names, and one that counts the rest."""
    warnings = []
    for name in names[:MOST_WARNED]:
        near = suggest(nearest(name, known_names, limit=3))
        warnings.append(f"{beginning} {shortened(name)}.{near}")
    more = len(names) - len(warnings)
    return [*warnings, f"{more:,} more names are unknown."] if more else warnings


def shortened(name: str) -> str:
    """Return the name, quoted and shortened for a warning."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}…")


# Numbers of things in sentences: 1 span, 2 spans.


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return the number and its noun. `plural`: if it is not `singular` and an s; both may contain
    a verb."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
