"""COCO: pictures in a folder, and one JSON file about them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, Any

from .examples import Example, format_annotation
from .json_records import format_inference, format_metadata, write_record
from .spool import Spool
from .summary import DatasetSummary

_VISIBLE = 2


class CocoWriter:
    """Writes `images/` and `annotations.json`, or what the two are to be called."""

    def __init__(
        self, folder: Path, *, pictures: str = "images", file: str = "annotations.json"
    ) -> None:
        self._pictures, self._file = folder / pictures, folder / file
        self._pictures.mkdir()
        self._spool = Spool(folder)
        self._keypoints: dict[str, dict[int, str | None]] = {}

    def add(self, example: Example) -> None:
        """Write the picture, and remember what is on it."""
        with (self._pictures / example.file_name).open("xb") as file:
            file.write(example.picture.content)
        width, height = example.picture.size
        image = {
            "file_name": example.file_name,
            "width": width,
            "height": height,
            **format_inference(example.inference),
            "metadata": format_metadata(example.inference.metadata),
        }
        for annotation in example.annotations:
            names = self._keypoints.setdefault(annotation.label, {})
            for keypoint, _ in annotation.keypoints:
                names[keypoint.index] = names.get(keypoint.index) or keypoint.name
        self._spool.add(
            {"image": image, "annotations": [*map(format_annotation, example.annotations)]}
        )

    def finish(self, summary: DatasetSummary, /) -> None:
        """Write the file: records are read from disk one after the other."""
        categories = [
            _make_category(number, label, self._keypoints.get(label, {}))
            for number, label in enumerate(summary.classes, 1)
        ]
        by_label = {category["name"]: category for category in categories}
        with self._file.open("x", encoding="utf-8") as file:
            file.write('{"info": ' + write_record(_make_info(summary)))
            file.write(', "licenses": []\n, "images": [\n')
            _write_items(file, _list_images(self._spool))
            file.write('], "annotations": [\n')
            _write_items(file, _list_annotations(self._spool, by_label))
            file.write('], "categories": [\n')
            _write_items(file, categories)
            file.write("]}\n")
        self._spool.remove()

    def close(self) -> None:
        """Close what is open."""
        self._spool.close()


def _make_info(summary: DatasetSummary) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "description": "Inferences of an Inference Store, with predictions as annotations",
        "version": "1",
        "year": now.year,
        "date_created": now.isoformat(timespec="seconds"),
        "left_out": dict(summary.left_out),
        "dropped": dict(summary.dropped),
        "remarks": dict(summary.remarks),
    }


def _make_category(number: int, label: str, keypoints: Mapping[int, str | None]) -> dict[str, Any]:
    category: dict[str, Any] = {"id": number, "name": label, "supercategory": ""}
    if keypoints:
        indexes = range(max(keypoints) + 1)
        category["keypoints"] = [keypoints.get(n) or f"keypoint_{n}" for n in indexes]
        category["skeleton"] = []
    return category


def _list_images(spool: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for number, record in enumerate(spool, 1):
        yield {"id": number, **record["image"]}


def _list_annotations(
    spool: Iterable[Any], categories: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    ids = count(1)
    for image_id, record in enumerate(spool, 1):
        for annotation in record["annotations"]:
            category = categories[annotation.pop("label")]
            keypoints = annotation.pop("keypoints", ())
            yield {
                "id": next(ids),
                "image_id": image_id,
                "category_id": category["id"],
                "iscrowd": 0,
                **annotation,
                **_place_keypoints(keypoints, len(category.get("keypoints", ()))),
            }


def _place_keypoints(keypoints: Sequence[Any], size: int) -> dict[str, Any]:
    """Return x, y and visibility of each keypoint of the category; zeros: it was not found."""
    if not size:
        return {}
    flat = [0.0, 0.0, 0] * size
    for keypoint in keypoints:
        begin = 3 * keypoint["index"]
        flat[begin : begin + 3] = [keypoint["x"], keypoint["y"], _VISIBLE]
    return {"keypoints": flat, "num_keypoints": len(keypoints)}


def _write_items(file: IO[str], items: Iterable[Mapping[str, Any]]) -> None:
    for number, item in enumerate(items):
        file.write(("," if number else "") + write_record(item))
