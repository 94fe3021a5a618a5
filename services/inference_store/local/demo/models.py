"""The models of the demo, and their registration over REST."""

import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_store.local.folder import LocalStackError

FRAMES = 240
"""Frames of the camera; both detectors see each."""
FRAME = "frame-"
"""The prefix of a frame's id."""
LABELS = tuple(str(digit) for digit in range(10))
"""The classes of the digit classifier."""
HELD_OUT = 300
"""Images of digits that the classifier was not trained on."""
TOPIC_LABELS = (
    *("color", "exposure", "feature", "filters", "graph"),
    *("measure", "morphology", "restoration", "segmentation", "transform"),
)
"""The classes of the topic classifier: parts of scikit-image."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The API at one address."""

    address: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON. Raises LocalStackError with the API's own text of a refusal."""
        return self._ask(method, path, None if body is None else json.dumps(body), "json")

    def load_truth(self, model_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Load ground truth, which changes nothing a second time. Raises LocalStackError."""
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        self._ask("POST", f"/v1/models/{model_id}/ground-truth", lines, "x-ndjson")

    def _ask(self, method: str, path: str, body: str | None, content_type: str) -> Any:
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else body.encode(),
            headers={"Content-Type": f"application/{content_type}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            words = error.read().decode("utf-8", errors="replace")
            raise LocalStackError(f"{method} {path} answered {error.code}: {words}") from error
        except OSError as error:
            raise LocalStackError(f"{method} {path}: the API does not answer: {error}") from error

    def count(self, model_id: str, body: Mapping[str, Any]) -> int:
        """Return how many indexed inferences of this model match. Raises LocalStackError."""
        path = f"/v1/models/{model_id}/inferences/count"
        return int(self.ask("POST", path, body)["count"])

    def inference_ids(self, model_id: str) -> Iterator[str]:
        """Yield the id of every indexed inference of this model, page by page."""
        body: dict[str, Any] = {"limit": _PAGE, "include": []}
        while True:
            page = self.ask("POST", f"/v1/models/{model_id}/inferences/query", body)
            yield from (item["inference_id"] for item in page["items"])
            if page["next"] is None:
                return
            body["cursor"] = page["next"]

    def curl(self, path: str, body: Any) -> str:
        """Return the question as a command for a shell."""
        return (
            f"curl -s {self.address}{path} \\\n"
            f"  -H 'Content-Type: application/json' \\\n"
            f"  -d {shlex.quote(json.dumps(body))}"
        )


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
    input: str = "image"
    """The name of its input, which says how it is written: `image`, `text` or `chat`."""

    def count(self, rest: Rest) -> int:
        """Return how many of the inferences are indexed. Raises LocalStackError."""
        return rest.count(self.model_id, {"filter": f"inference_id LIKE '{self.prefix}%'"})

    def has_truth(self, rest: Rest) -> bool:
        """Check whether its ground truth is loaded, if it has any. Raises LocalStackError."""
        return self not in LABELLED or rest.count(self.model_id, {"filter": "has_truth"}) > 0

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
SHAPES = DemoModel(
    "shape-segmenter",
    "Otsu's threshold and outlines; score = the share of its hull that a shape fills",
    "image_segmentation",
    ("round", "long", "irregular"),
    34,
    "specimen-",
)
TOPICS = DemoModel(
    "topic-classifier",
    "Topic of the most similar sentence of scikit-image's documentation; not calibrated",
    "text_classification",
    TOPIC_LABELS,
    100,
    "sentence-",
    "text",
)
CHAT = DemoModel(
    "docs-assistant",
    "Answers questions with sentences of scikit-image's documentation",
    "text_generation",
    (),
    24,
    "chat-",
    "chat",
)
LABELLED = (FACES, PEOPLE, DIGITS)
"""The models whose ground truth the demo has."""
DEMO_MODELS = (FACES, PEOPLE, SHAPES, DIGITS, TOPICS, CHAT)


@dataclass(frozen=True, slots=True)
class Request:
    """One input for one model."""

    model: DemoModel
    request_id: str
    """The same id at every start, so that nothing is fed twice."""
    content: bytes = field(repr=False)
    """A JPEG, a PNG, a text, or a chat's messages in JSON."""
    items: Sequence[tuple[str, str, str]]
    """The key, type and value of each metadata item."""
    refused: bool = False
    """True if the model cannot read it."""

    @property
    def metadata(self) -> str:
        """The items as JSON."""
        return json.dumps([{"key": k, "type": kind, "value": v} for k, kind, v in self.items])


_TIMEOUT_SECONDS = 30.0
_PAGE = 1000
