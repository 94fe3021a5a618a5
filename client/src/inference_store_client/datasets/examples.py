"""One example of a dataset: an inference, its picture and its annotations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inference_store_client.values.inference import InferenceFields

from .annotations import Annotation
from .pictures import Picture
from .summary import DatasetSummary


@dataclass(frozen=True, slots=True)
class Example:
    """An inference, its picture and its annotations."""

    inference: InferenceFields
    picture: Picture
    annotations: Sequence[Annotation]

    @property
    def file_name(self) -> str:
        """The name of its file: nothing of it comes from who sent the picture."""
        return f"{self.inference.uid}.{self.picture.suffix}"


class DatasetWriter(Protocol):
    """Writes one format into a folder."""

    def add(self, example: Example) -> None:
        """Write an example; the classes are not known yet."""

    def finish(self, summary: DatasetSummary, /) -> None:
        """Write what needs all classes, which are in their final order here."""

    def close(self) -> None:
        """Close what is open."""


def format_annotation(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON: `bbox` is [left, top, width, height]."""
    left, top, right, bottom = annotation.box
    record: dict[str, Any] = {
        "label": annotation.label,
        "score": annotation.score,
        "bbox": [left, top, right - left, bottom - top],
        "area": annotation.area,
        "ordinal": annotation.ordinal,
    }
    if annotation.polygons:
        record["segmentation"] = [
            [coordinate for point in part for coordinate in point] for part in annotation.polygons
        ]
    if annotation.keypoints:
        record["keypoints"] = [
            {"index": known.index, "name": known.name, "score": known.score, "x": x, "y": y}
            for known, (x, y) in annotation.keypoints
        ]
    return record
