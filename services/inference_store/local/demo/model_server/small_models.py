"""A classifier of handwritten digits in plain Python, if the extra `demo` is not installed.

Its weights are those that the demo's classifier learns (tests/unit/local/test_small_model.py);
digits.json holds a row of weights and an intercept for each digit.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import product

from inference_store.local.demo.models import DIGITS, LABELS

from .png import GreyPicture, read_png
from .serving import Finding, Model

_SIDE = 8
_BRIGHTEST = 16


def small_models() -> Mapping[str, Model]:
    """Return the classifier, under its name in the demo."""
    return {DIGITS.model_id: SmallClassifier().classify}


class SmallClassifier:
    """Logistic regression on 8 x 8 greys, as scikit-learn's digits are: bright on dark."""

    def __init__(self) -> None:
        learnt = json.loads(files(__package__).joinpath("digits.json").read_text())
        self._weights: Sequence[Sequence[float]] = learnt["weights"]
        self._intercepts: Sequence[float] = learnt["intercepts"]

    def classify(self, encoded: bytes) -> Sequence[Finding]:
        """Return the ten classes with their probabilities, best first. Raises NoPicture."""
        pixels = _shrink(read_png(encoded))
        powers = [
            intercept + sum(map(float.__mul__, weights, pixels))
            for weights, intercept in zip(self._weights, self._intercepts, strict=True)
        ]
        shares = [math.exp(power - max(powers)) for power in powers]
        scores = {label: share / sum(shares) for label, share in zip(LABELS, shares, strict=True)}
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        return [{"label": label, "score": round(scores[label], 6)} for label in best_first]


def _shrink(picture: GreyPicture) -> list[float]:
    """Return the mean greys of 8 x 8 cells, in the steps of the data set, 0 to 1."""
    across, down = _cells(picture.width), _cells(picture.height)
    return [
        round(_mean(picture, columns, rows) / 255 * _BRIGHTEST) / _BRIGHTEST
        for rows, columns in product(down, across)
    ]


def _cells(length: int) -> list[range]:
    """Return the pixels in each of the cells; at least one."""
    starts = [index * length // _SIDE for index in range(_SIDE)]
    ends = [(index + 1) * length // _SIDE for index in range(_SIDE)]
    return [range(start, max(end, start + 1)) for start, end in zip(starts, ends, strict=True)]


def _mean(picture: GreyPicture, columns: range, rows: range) -> float:
    greys = [picture.rows[row][column] for row in rows for column in columns]
    return sum(greys) / len(greys)
