"""The demo's models: OpenCV's detectors of faces and people, outlines of shapes, and all others."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np

from .models import CHAT, DIGITS, FACES, PEOPLE, SHAPES, TOPICS
from .served_models import Finding, Model, Refusal, small_models
from .sources import Image
from .texts import Assistant, TopicClassifier

# OpenCV's two classic detectors: faces by a Haar cascade, people by a HOG and a linear SVM.
#
# Neither gives a probability. Each finding has a raw weight (the cascade's last stage, the SVM's
# margin); a logistic with a fixed middle and steepness, chosen by eye, turns it into a score
# between 0 and 1. The scores order the findings of one detector; they are not calibrated.

_Detect: TypeAlias = Callable[[Image], Sequence[Finding]]


def load_face_detector() -> _Detect:
    """Return the frontal face cascade that the OpenCV wheel carries."""
    file = Path(cv2.__file__).parent / "data" / "haarcascade_frontalface_default.xml"
    cascade = cv2.CascadeClassifier(str(file))

    def detect(image: Image) -> Sequence[Finding]:
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        boxes, _, weights = cascade.detectMultiScale3(
            grey, scaleFactor=1.15, minNeighbors=2, minSize=(40, 40), outputRejectLevels=True
        )
        scores = 1 / (1 + np.exp(2 - np.ravel(weights)))
        # OpenCV's threads find them in any order.
        return sorted(_boxes("face", boxes, scores, image), key=lambda face: -face["score"])

    return detect


def load_people_detector() -> _Detect:
    """Return the pedestrian detector inside OpenCV."""
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(np.array(cv2.HOGDescriptor.getDefaultPeopleDetector()))

    def detect(image: Image) -> Sequence[Finding]:
        # a threshold below 0 adds doubtful ones, with low scores
        boxes, weights = hog.detectMultiScale(
            image, hitThreshold=-0.3, winStride=(8, 8), padding=(8, 8), scale=1.08
        )
        scores = 1 / (1 + np.exp(-4 * (np.ravel(weights) - 0.3)))
        return [*_boxes("person", boxes, scores, image)]

    return detect


def _boxes(label: str, boxes: Any, scores: Any, image: Image) -> Iterator[Finding]:
    """Yield N findings. `boxes`: N × (x, y, width, height), cut at the image's edges."""
    height, width = image.shape[:2]
    for box, score in zip(np.reshape(boxes, (-1, 4)).tolist(), scores, strict=True):
        x, y, across, tall = map(int, box)
        yield {
            "label": label,
            "score": round(float(score), 4),
            **{"xmin": max(x, 0), "xmax": min(x + across, width)},
            **{"ymin": max(y, 0), "ymax": min(y + tall, height)},
        }


# Outlines of what stands out from the background, by Otsu's threshold: no model names what it is,
# so the label says how its shape is, and the score how much of its hull it fills.

_MOST_SHAPES = 40
_LEAST_SHARE = 0.0008  # of the picture
_ROUND, _LONG = 0.7, 3.0


def outline_shapes(image: Image) -> Sequence[Finding]:
    """Return the largest shapes in `image`, largest first."""
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), (5, 5), 0)
    _, mask = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    if mask.mean() > 127:  # dark things on a bright background
        mask = cv2.bitwise_not(mask)
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    least = _LEAST_SHARE * mask.size
    large = [contour for contour in contours if cv2.contourArea(contour) > least]
    return [*map(_describe_shape, sorted(large, key=cv2.contourArea, reverse=True)[:_MOST_SHAPES])]


def _describe_shape(contour: Any) -> Finding:
    area, around = cv2.contourArea(contour), cv2.arcLength(contour, closed=True)
    short, long = sorted(cv2.minAreaRect(contour)[1])
    is_round = 4 * math.pi * area / around**2 > _ROUND
    points = np.reshape(cv2.approxPolyDP(contour, 1.0, closed=True), (-1, 2)).tolist()
    return {
        "label": "round" if is_round else "long" if long > _LONG * short else "irregular",
        "score": round(area / cv2.contourArea(cv2.convexHull(contour)), 4),
        "contour": [[{"x": x, "y": y} for x, y in points]],
    }


# The demo's models. They need the extra `demo`.

_SLOW_CALLS, _SLOW_SECONDS = range(120, 150), 0.2


def demo_models() -> Mapping[str, Model]:
    """Return all models, loaded."""
    small = small_models()
    return {
        FACES.model_id: _build_model(load_face_detector()),
        PEOPLE.model_id: _build_model(load_people_detector()),
        SHAPES.model_id: _build_model(outline_shapes),
        DIGITS.model_id: _with_slow_spell(small[DIGITS.model_id]),
        TOPICS.model_id: TopicClassifier().classify,
        CHAT.model_id: Assistant().reply,
    }


def _with_slow_spell(model: Model) -> Model:
    """Return a model some of whose calls wait, as for a neighbour that takes the machine."""
    calls = count()

    def answer(encoded: bytes) -> Sequence[Finding]:
        if next(calls) in _SLOW_CALLS:
            time.sleep(_SLOW_SECONDS)
        return model(encoded)

    return answer


def _build_model(find: Callable[[Image], Sequence[Finding]]) -> Model:
    return lambda encoded: find(_decode(encoded))


def _decode(encoded: bytes) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:  # of an empty buffer, or one that promises too many pixels
        image = None
    if image is None:
        raise Refusal("the input is no picture that can be read")
    return np.asarray(image, dtype=np.uint8)
