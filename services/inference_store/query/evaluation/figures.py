"""Figures of right and wrong answers, and how certain they are: no tables, no libraries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Final, NamedTuple, TypeAlias

FEW: Final = 30
"""Of fewer inferences with truth no figure says much."""
_Z: Final = 1.959963984540054
"""Half of a standard normal's middle 95 %."""
Interval: TypeAlias = tuple[float, float]
Cells: TypeAlias = Mapping[tuple[str, str | None], int]
"""Inferences by their true label and the predicted one; None: there was no prediction."""


def divide(part: float, whole: float) -> float | None:
    """Return a ratio; None of nothing."""
    return part / whole if whole else None


def wilson(part: float, whole: int) -> Interval | None:
    """Return the 95 % interval of a ratio by Wilson's score; None of nothing."""
    if not whole:
        return None
    share, spread = part / whole, _Z * _Z / whole
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * sqrt(share * (1 - share) / whole + spread / whole / 4)
    # at the ends without what rounding leaves
    low, high = 0.0 if part == 0 else centre - half, 1.0 if part == whole else centre + half
    return low, high


def around_mean(number: int, total: float, squares: float) -> Interval | None:
    """Return the 95 % interval of a mean, by the normal distribution; None of fewer than two."""
    if number < 2:
        return None
    mean = total / number
    half = _Z * sqrt(max(0.0, squares - number * mean * mean) / (number - 1) / number)
    return mean - half, mean + half


class Retrieval(NamedTuple):
    """What was found, wrongly found and missed of a label."""

    found: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float | None:
        """The share of the predicted ones that are right."""
        return divide(self.found, self.found + self.wrong)

    @property
    def recall(self) -> float | None:
        """The share of the true ones that were found."""
        return divide(self.found, self.found + self.missed)

    @property
    def f1(self) -> float | None:
        """The harmonic mean of both."""
        return divide(2 * self.found, 2 * self.found + self.wrong + self.missed)


def count_labels(cells: Cells) -> dict[str, Retrieval]:
    """Return the counts of each label that is true or predicted, the most frequent in truth
    first."""
    true, said, right = Counter[str](), Counter[str](), Counter[str]()
    for (truth, predicted), number in cells.items():
        true[truth] += number
        if predicted is not None:
            said[predicted] += number
        if truth == predicted:
            right[truth] += number
    names = sorted({*true, *said}, key=lambda name: (-true[name], -said[name], name))
    return {
        name: Retrieval(right[name], said[name] - right[name], true[name] - right[name])
        for name in names
    }


def average(values: Iterable[float | None]) -> float | None:
    """Return the mean over labels, of which one that was never predicted, or never true, counts
    as 0."""
    counted = [value or 0.0 for value in values]
    return divide(sum(counted), len(counted))


class Bin(NamedTuple):
    """Inferences with scores in a bin: how many, of which right, and the sum of their scores."""

    number: int = 0
    right: int = 0
    total: float = 0.0
