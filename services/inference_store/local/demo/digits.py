"""A classifier of handwritten digits, trained when it is created, and pictures for its test."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from .models import HELD_OUT, LABELS
from .photographs import Image

_SIDE = 8  # pixels, as tall as wide
_SCALE = 8
_BRIGHTEST = 16.0


@dataclass(frozen=True, slots=True)
class Digit:
    """One held-out image."""

    sample: int
    """Its place in scikit-learn's data set."""
    true_label: str
    pixels: NDArray[np.float64]
    """64 numbers, 0 to 16."""

    @property
    def image(self) -> Image:
        """64 × 64 × 3."""
        grey = (self.pixels.reshape(_SIDE, _SIDE) / _BRIGHTEST * 255).astype(np.uint8)
        large = cv2.resize(grey, None, fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_NEAREST)
        return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


def held_out_digits() -> list[Digit]:
    """Return the images that the classifier was not trained on, always the same ones."""
    data = load_digits()
    _, unseen = _split(len(data.target))
    return [Digit(int(sample), str(data.target[sample]), data.data[sample]) for sample in unseen]


class DigitClassifier:
    """Logistic regression on the pixels of scikit-learn's digits."""

    def __init__(self) -> None:
        """Train on all images but the held-out ones."""
        data = load_digits()
        training, _ = _split(len(data.target))
        self._model = LogisticRegression(max_iter=2000)
        self._model.fit(data.data[training] / _BRIGHTEST, data.target[training])

    def classify(self, image: Image) -> list[dict[str, str | float]]:
        """Return the ten classes with their probabilities, best first, of a picture of any size."""
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        small = cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
        pixels = np.rint(small.ravel() / 255 * _BRIGHTEST)
        (shares,) = self._model.predict_proba([pixels / _BRIGHTEST])
        best_first = np.argsort(shares)[::-1]
        return [{"label": LABELS[i], "score": round(float(shares[i]), 6)} for i in best_first]


def _split(count: int) -> list[NDArray[np.int64]]:
    """Return the indexes of the training images, and of those held out."""
    every = np.arange(count)
    return list(train_test_split(every, test_size=HELD_OUT, random_state=7))
