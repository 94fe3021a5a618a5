"""The demo's three models. They need the extra `demo`."""

from collections.abc import Callable, Mapping, Sequence

import cv2
import numpy as np

from inference_store.local.demo.models import DIGITS, FACES, PEOPLE
from inference_store.local.demo.sources import DigitClassifier, FaceDetector, Image, PeopleDetector

from .models import Finding, Model, NoPicture


def opencv_models() -> Mapping[str, Model]:
    """Return all models, loaded and trained."""
    return {
        FACES.model_id: _build_model(FaceDetector().detect),
        PEOPLE.model_id: _build_model(PeopleDetector().detect),
        DIGITS.model_id: _build_model(DigitClassifier().classify),
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
