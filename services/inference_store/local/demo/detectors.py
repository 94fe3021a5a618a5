"""OpenCV's two classic detectors: faces by a Haar cascade, people by a HOG and a linear SVM.

Neither gives a probability. Each finding has a raw weight (the cascade's last stage, the SVM's
margin); a logistic with a fixed middle and steepness, chosen by eye, turns it into a score
between 0 and 1. The scores order the findings of one detector; they are not calibrated.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

import cv2
import numpy as np

from .photographs import Image


@dataclass(frozen=True, slots=True)
class Logistic:
    """1 / (1 + e^(−steepness · (weight − middle)))."""

    middle: float
    steepness: float

    def score(self, weight: float) -> float:
        return 1 / (1 + math.exp(-self.steepness * (weight - self.middle)))


FACE_SCORE = Logistic(middle=2.0, steepness=1.0)
PEOPLE_SCORE = Logistic(middle=0.3, steepness=4.0)


class Detection(TypedDict):
    """One finding; the box in pixels, y down."""

    label: str
    score: float
    xmin: int
    xmax: int
    ymin: int
    ymax: int


class Detector(Protocol):
    """A detector for one thread at a time: OpenCV's classifiers keep state."""

    def detect(self, image: Image) -> list[Detection]: ...


class FaceDetector:
    """The frontal face cascade that the OpenCV wheel carries."""

    def __init__(self) -> None:
        file = Path(cv2.__file__).parent / "data" / "haarcascade_frontalface_default.xml"
        self._cascade = cv2.CascadeClassifier(str(file))

    def detect(self, image: Image) -> list[Detection]:
        """Return the faces in `image`, in the order of the cascade."""
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        boxes, _, weights = self._cascade.detectMultiScale3(
            grey, scaleFactor=1.15, minNeighbors=2, outputRejectLevels=True
        )
        found = _detections("face", boxes, weights, FACE_SCORE, image)
        # OpenCV's threads find them in any order.
        return sorted(found, key=lambda face: face["score"], reverse=True)


class PeopleDetector:
    """The pedestrian detector inside OpenCV."""

    def __init__(self) -> None:
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(np.array(cv2.HOGDescriptor.getDefaultPeopleDetector()))

    def detect(self, image: Image) -> list[Detection]:
        """Return the people in `image`; a threshold below 0 adds doubtful ones, with low scores."""
        boxes, weights = self._hog.detectMultiScale(
            image, hitThreshold=-0.3, winStride=(8, 8), padding=(8, 8), scale=1.08
        )
        return list(_detections("person", boxes, weights, PEOPLE_SCORE, image))


def _detections(
    label: str, boxes: Any, weights: Any, logistic: Logistic, image: Image
) -> Iterator[Detection]:
    """Yield N detections. `boxes`: N × (x, y, width, height), cut at the image's edges."""
    height, width = image.shape[:2]
    for box, weight in zip(np.reshape(boxes, (-1, 4)), np.ravel(weights), strict=True):
        x, y, across, tall = (int(number) for number in box)
        yield {
            "label": label,
            "score": round(logistic.score(float(weight)), 4),
            "xmin": max(x, 0),
            "xmax": min(x + across, width),
            "ymin": max(y, 0),
            "ymax": min(y + tall, height),
        }
