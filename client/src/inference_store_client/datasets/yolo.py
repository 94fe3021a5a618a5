"""YOLO: a file of labels beside each picture, in shares of its size."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from .examples import Example, format_annotation
from .geometry import Size
from .json_records import format_inference, format_metadata, write_record
from .spool import Spool
from .summary import DatasetSummary

_DIGITS: Final = 6


class YoloWriter:
    """Writes `images/`, `labels/`, `data.yaml`, and `inferences.jsonl`: whose picture is whose."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images, self._labels = folder / "images", folder / "labels"
        self._images.mkdir()
        self._labels.mkdir()
        self._spool = Spool(folder)

    def add(self, example: Example) -> None:
        """Write the picture, and remember its boxes."""
        with (self._images / example.file_name).open("xb") as file:
            file.write(example.picture.content)
        record = {
            "file_name": f"images/{example.file_name}",
            **format_inference(example.inference),
            "metadata": format_metadata(example.inference.metadata),
            "scores": [annotation.score for annotation in example.annotations],
        }
        labels = [
            [annotation["label"], _format_box(annotation["bbox"], example.picture.size)]
            for annotation in map(format_annotation, example.annotations)
        ]
        self._spool.add({"record": record, "labels": labels})

    def finish(self, summary: DatasetSummary, /) -> None:
        """Write the labels by the index of their class, and the names of the classes."""
        indexes = {label: index for index, label in enumerate(summary.classes)}
        with (self._folder / "inferences.jsonl").open("x", encoding="utf-8") as sidecar:
            for item in self._spool:
                sidecar.write(write_record(item["record"]))
                name = Path(item["record"]["file_name"]).with_suffix(".txt").name
                lines = [f"{indexes[label]} {box}\n" for label, box in item["labels"]]
                (self._labels / name).write_text("".join(lines))
        (self._folder / "data.yaml").write_text("".join(_list_lines(summary.classes)))
        self._spool.remove()

    def close(self) -> None:
        """Close what is open."""
        self._spool.close()


def _format_box(bbox: Sequence[Any], size: Size) -> str:
    """Return centre and size as shares; no digit rounds a box beyond its picture."""
    left, top, width, height = bbox
    shares = (
        (left + width / 2) / size[0],
        (top + height / 2) / size[1],
        width / size[0],
        height / size[1],
    )
    smallest = 10.0**-_DIGITS
    return " ".join(f"{min(max(share, smallest), 1.0):.{_DIGITS}f}" for share in shares)


def _list_lines(classes: Sequence[str]) -> Iterator[str]:
    """Yield `data.yaml`. Without `path` its folder is meant, wherever that is moved to."""
    yield "# Predictions of models: train and val are the same pictures until you divide them.\n"
    yield "train: images\nval: images\n"
    yield f"nc: {len(classes)}\n"
    yield "names:\n" if classes else "names: {}\n"
    for index, label in enumerate(classes):
        yield f"  {index}: {_quote(label)}\n"


def _quote(text: str) -> str:
    """Return a text in double quotes of YAML: what is not plain ASCII is escaped."""
    escaped = (
        character
        if character.isascii() and character.isprintable() and character not in '"\\'
        else f"\\U{ord(character):08X}"
        for character in text
    )
    return f'"{"".join(escaped)}"'
