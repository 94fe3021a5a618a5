"""A classifier of handwritten digits, trained when it is made, and images it has not seen."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from .models import LABELS
from .photographs import Image

_SCALE = 8  # the images have 8 × 8 pixels
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
        grey = (self.pixels.reshape(8, 8) / _BRIGHTEST * 255).astype(np.uint8)
        large = cv2.resize(grey, None, fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_NEAREST)
        return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


class DigitClassifier:
    """Logistic regression on the pixels of scikit-learn's digits."""

    def __init__(self, held_out: int) -> None:
        """Train on all images but `held_out`; which ones is the same every time."""
        data = load_digits()
        every = np.arange(len(data.target))
        seen, unseen = train_test_split(every, test_size=held_out, random_state=7)
        self._model = LogisticRegression(max_iter=2000)
        self._model.fit(data.data[seen] / _BRIGHTEST, data.target[seen])
        self.held_out = [
            Digit(int(sample), str(data.target[sample]), data.data[sample]) for sample in unseen
        ]

    def classify(self, digit: Digit) -> list[dict[str, str | float]]:
        """All ten classes with their probabilities, best first."""
        (shares,) = self._model.predict_proba([digit.pixels / _BRIGHTEST])
        best_first = np.argsort(shares)[::-1]
        return [{"label": LABELS[i], "score": round(float(shares[i]), 6)} for i in best_first]
