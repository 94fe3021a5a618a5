"""The demo's three models. They need the extra `demo`."""

from collections.abc import Callable, Mapping, Sequence

import cv2
import numpy as np

from inference_store.local.demo.detectors import FaceDetector, PeopleDetector
from inference_store.local.demo.digits import DigitClassifier
from inference_store.local.demo.models import DIGITS, FACES, PEOPLE
from inference_store.local.demo.photographs import Image

from .serving import Finding, Model, NoPicture


def opencv_models() -> Mapping[str, Model]:
    """All of them, loaded and trained."""
    return {
        FACES.model_id: _reading(FaceDetector().detect),
        PEOPLE.model_id: _reading(PeopleDetector().detect),
        DIGITS.model_id: _reading(DigitClassifier().classify),
    }


def _reading(find: Callable[[Image], Sequence[Finding]]) -> Model:
    return lambda encoded: find(_decoded(encoded))


def _decoded(encoded: bytes) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:  # of an empty buffer, or one that promises too many pixels
        image = None
    if image is None:
        raise NoPicture
    return np.asarray(image, dtype=np.uint8)
