"""The three models of the demo, and their registration over REST."""

from dataclasses import dataclass
from typing import Any

from .rest import Rest

FRAMES = 240
"""Frames of the camera; both detectors see each."""
FRAME = "frame-"
"""The prefix of a frame's id."""
LABELS = tuple(str(digit) for digit in range(10))
"""The classes of the digit classifier."""
HELD_OUT = 300
"""Images of digits that the classifier was not trained on."""


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A registration, and how many inferences the demo feeds for it."""

    model_id: str
    name: str
    task_type: str
    class_labels: tuple[str, ...]
    inferences: int
    prefix: str
    """The prefix of the ids of those inferences."""

    def count(self, rest: Rest) -> int:
        """Return how many of the inferences are indexed. Raises LocalStackError."""
        return rest.count(self.model_id, {"filter": f"inference_id LIKE '{self.prefix}%'"})

    def register(self, rest: Rest) -> None:
        """Register this model with the store; repeatable. Raises LocalStackError."""
        body: dict[str, Any] = {
            "name": self.name,
            "task_type": self.task_type,
            "class_labels": list(self.class_labels),
        }
        rest.ask("PUT", f"/v1/models/{self.model_id}", body)


FACES = DemoModel(
    "face-detector",
    "OpenCV frontal face cascade; score = 1 / (1 + e^-(weight - 2)), not calibrated",
    "object_detection",
    ("face",),
    FRAMES,
    FRAME,
)
PEOPLE = DemoModel(
    "people-detector",
    "OpenCV HOG people detector; score = 1 / (1 + e^-4(weight - 0.3)), not calibrated",
    "object_detection",
    ("person",),
    FRAMES,
    FRAME,
)
DIGITS = DemoModel(
    "digit-classifier",
    "Logistic regression on scikit-learn's digits",
    "image_classification",
    LABELS,
    HELD_OUT,
    "digit-",
)
DEMO_MODELS = (FACES, PEOPLE, DIGITS)
