"""The photographs and digits in wheels, and what finds faces and people in them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from inference_store.local.demo.models import FACES, HELD_OUT, PEOPLE
from inference_store.local.demo.served_models import Finding, Model, NoPicture, small_models
from inference_store.local.folder import LocalStackError, find_package

Image = NDArray[np.uint8]
"""Height × width × 3, blue-green-red as in OpenCV."""

_SHEET_SIDE = 10  # the first 100 pictures of lfw_subset are faces
_SHEET_SCALE = 5


@dataclass(frozen=True, slots=True)
class Photograph:
    """One photograph inside a wheel."""

    name: str
    package: str
    file: str
    data_source: str

    @property
    def path(self) -> Path:
        """Its path. Raises LocalStackError if the wheel does not contain it."""
        path = find_package(self.package) / self.file
        if not path.exists():
            raise LocalStackError(f"The package {self.package} does not carry {self.file}.")
        return path

    def read(self) -> Image:
        """Read the photograph. Raises LocalStackError."""
        if self.file.endswith(".npy"):
            return _sheet_of_faces(np.load(self.path))
        image = cv2.imread(str(self.path), cv2.IMREAD_COLOR)
        if image is None:
            raise LocalStackError(f"OpenCV cannot read {self.path}.")
        return np.asarray(image, dtype=np.uint8)


_HALLWAY, _YARD, _TABLE = "hallway-camera-feed", "yard-camera-feed", "table-camera-feed"

PHOTOGRAPHS = (
    Photograph("astronaut", "skimage", "data/astronaut.png", _HALLWAY),
    Photograph("coins", "skimage", "data/coins.png", _TABLE),
    Photograph("rocket", "skimage", "data/rocket.jpg", _YARD),
    Photograph("lfw_subset", "skimage", "data/lfw_subset.npy", _HALLWAY),
    Photograph("chelsea", "skimage", "data/chelsea.png", _HALLWAY),
    Photograph("motorcycle", "skimage", "data/motorcycle_left.png", _YARD),
    Photograph("flower", "sklearn", "datasets/images/flower.jpg", _TABLE),
    Photograph("camera", "skimage", "data/camera.png", _YARD),
    Photograph("china", "sklearn", "datasets/images/china.jpg", _YARD),
    Photograph("coffee", "skimage", "data/coffee.png", _TABLE),
)


def _sheet_of_faces(pictures: NDArray[np.float64]) -> Image:
    """Return a sheet of 100 faces of `pictures` (N × 25 × 25, 0 to 1), enlarged."""
    rows = [
        np.hstack(list(pictures[start : start + _SHEET_SIDE]))
        for start in range(0, _SHEET_SIDE**2, _SHEET_SIDE)
    ]
    grey = (np.vstack(rows) * 255).astype(np.uint8)
    large = cv2.resize(grey, None, fx=_SHEET_SCALE, fy=_SHEET_SCALE, interpolation=cv2.INTER_CUBIC)
    return np.asarray(cv2.cvtColor(large, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


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
    every = np.arange(len(data.target))
    _, unseen = train_test_split(every, test_size=HELD_OUT, random_state=7)
    return [Digit(int(sample), str(data.target[sample]), data.data[sample]) for sample in unseen]


# OpenCV's two classic detectors: faces by a Haar cascade, people by a HOG and a linear SVM.
#
# Neither gives a probability. Each finding has a raw weight (the cascade's last stage, the SVM's
# margin); a logistic with a fixed middle and steepness, chosen by eye, turns it into a score
# between 0 and 1. The scores order the findings of one detector; they are not calibrated.


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


# The demo's three models. They need the extra `demo`.


def opencv_models() -> Mapping[str, Model]:
    """Return all models, loaded."""
    return {
        FACES.model_id: _build_model(FaceDetector().detect),
        PEOPLE.model_id: _build_model(PeopleDetector().detect),
        **small_models(),
    }


def _build_model(find: Callable[[Image], Sequence[Finding]]) -> Model:
    return lambda encoded: find(_decode(encoded))


def _decode(encoded: bytes) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:  # of an empty buffer, or one that promises too many pixels
        image = None
    if image is None:
        raise NoPicture
    return np.asarray(image, dtype=np.uint8)
