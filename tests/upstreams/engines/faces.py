"""Faces in an image by the cascade that OpenCV's wheel carries, as the demo finds them."""

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np

_CASCADE = Path(cv2.__file__).parent / "data" / "haarcascade_frontalface_default.xml"
_MIDDLE = 2.0


class NoImage(Exception):
    """The bytes are no image; the text says so."""


class FaceDetector:
    """Not to be called by two threads at once."""

    def __init__(self) -> None:
        self._cascade = cv2.CascadeClassifier(str(_CASCADE))

    def detect(self, image: bytes) -> list[dict[str, Any]]:
        """Label, score and box of each face, in pixels, y down. Raises NoImage."""
        grey = _grey(image)
        boxes, _, weights = self._cascade.detectMultiScale3(
            grey, scaleFactor=1.15, minNeighbors=2, outputRejectLevels=True
        )
        found = zip(np.reshape(boxes, (-1, 4)).tolist(), np.ravel(weights).tolist(), strict=True)
        # the cascade works in threads, and finds them in another order each time
        detections = [_detection(box, weight) for box, weight in found]
        return sorted(detections, key=lambda one: (-one["score"], one["xmin"], one["ymin"]))


def _grey(image: bytes) -> Any:
    encoded = np.frombuffer(image, dtype=np.uint8)
    decoded = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE) if encoded.size else None
    if decoded is None:
        raise NoImage(f"{len(image)} bytes that are no image")
    return decoded


def _detection(box: list[int], weight: float) -> dict[str, Any]:
    x, y, width, height = box
    score = 1 / (1 + math.exp(_MIDDLE - weight))
    edges = {"xmin": x, "xmax": x + width, "ymin": y, "ymax": y + height}
    return {"label": "face", "score": round(score, 4), **edges}
