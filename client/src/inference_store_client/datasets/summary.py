"""What a dataset holds, and what is not in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inference_store_client.datasets.annotations import Annotation, Picture, format_value
from inference_store_client.json_text import write_count
from inference_store_client.times import format_instant
from inference_store_client.values.inference import InferenceFields, Prediction

LEFT_OUT: Final[Mapping[str, str]] = {
    "no_data": "the store has no datum of them",
    "deleted": "their datum was deleted, or is not in the bucket",
    "not_a_picture": "their datum is no JPEG, PNG, GIF, WebP, BMP, TIFF or AVIF",
    "unreadable": "the header of their picture cannot be read",
    "unsupported": "readers of the format do not open their kind of picture",
}
"""Why inferences that match are not in a dataset."""
DROPPED: Final[Mapping[str, str]] = {
    "no_shape": "they have no place in their picture, or no label for the whole",
    "outside": "they have no area inside their picture",
    "other_class": "their label is not in `classes`",
}
"""Why predictions are neither annotations nor labels."""
REMARKS: Final[Mapping[str, str]] = {
    "clipped": "annotations were cut at the edge of their picture",
    "unpredicted": "pictures have no predictions that the store could read",
    "without_outline": "pictures have boxes for some of their contours or keypoints",
}
"""What a reader of the dataset should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """A dataset that is complete: each inference that matched is a picture, or left out.

    The keys of the three mappings are those of LEFT_OUT, DROPPED and REMARKS.
    """

    folder: Path
    classes: tuple[str, ...]
    pictures: int
    """Of a format that takes texts: pictures and texts."""
    annotations: int
    labels: int
    """Pictures with a class, which a classifier gave to the whole of them."""
    left_out: Mapping[str, int]
    """Inferences that are not in the dataset, by reason."""
    dropped: Mapping[str, int]
    """Predictions that are neither annotations nor labels, by reason."""
    remarks: Mapping[str, int]
    """What a reader should know of pictures and annotations, by what it is."""

    @property
    def inferences(self) -> int:
        """How many inferences matched."""
        return self.pictures + sum(self.left_out.values())

    def __str__(self) -> str:
        return "\n".join(
            [
                self._describe_contents(),
                *_describe("inferences left out", self.left_out, LEFT_OUT),
                *_describe("predictions dropped", self.dropped, DROPPED),
                *_describe("remarks", self.remarks, REMARKS),
            ]
        )

    def _describe_contents(self) -> str:
        pictures = write_count(self.pictures, "picture")
        inferences = write_count(self.inferences, "inference")
        annotations = write_count(self.annotations, "annotation")
        classes = write_count(len(self.classes), "class", "classes")
        labels = f" and {write_count(self.labels, 'label')}" if self.labels else ""
        return f"{self.folder.name}: {pictures} of {inferences}, {annotations}{labels} of {classes}"


def _describe(title: str, counts: Mapping[str, int], texts: Mapping[str, str]) -> list[str]:
    return [f"- {title}: {count:,} ({texts[name]})" for name, count in counts.items()]


# One example of a dataset: an inference, its picture and its annotations.


@dataclass(frozen=True, slots=True)
class Example:
    """An inference, its picture and its annotations."""

    inference: InferenceFields
    picture: Picture
    annotations: Sequence[Annotation]
    label: str | None
    """Its class: the best of `classes`, if it is wanted."""
    classes: Sequence[Prediction]
    """Classes of the whole, the best first."""

    @property
    def file_name(self) -> str:
        """The name of its file: nothing of it comes from who sent the picture."""
        return f"{self.inference.uid}.{self.picture.suffix}"


def format_example(example: Example) -> dict[str, Any]:
    """Return what every format says of an example; no link and no storage key."""
    inference, (width, height) = example.inference, example.picture.size
    scored = [{"label": each.label, "score": each.score} for each in example.classes]
    return {
        "uid": str(inference.uid),
        "inference_id": inference.inference_id,
        "model_id": inference.model_id,
        "received_at": format_instant(inference.received_at),
        "width": width,
        "height": height,
        "label": example.label,
        "classes": scored,
        "metadata": {key: format_value(value) for key, value in inference.metadata.items()},
    }


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
