"""The formats: one list, which the methods, the command line and the docs follow."""

import io
import json
import re
import tarfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final
from unicodedata import normalize

from inference_store_client.datasets.annotations import TEXT, Size, write_record
from inference_store_client.datasets.summary import (
    DatasetSummary,
    Example,
    format_annotation,
    format_example,
)
from inference_store_client.errors import SettingsError


class Spool:
    """Lines of JSON, written once and then read as often as needed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".records.jsonl"
        self._file = self._path.open("x", encoding="utf-8")

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record."""
        self._file.write(write_record(record))

    def __iter__(self) -> Iterator[Any]:
        self._file.flush()
        with self._path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class DatasetWriter(ABC):
    """Writes one format into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._spool = folder, Spool(folder)

    @abstractmethod
    def add(self, example: Example) -> None:
        """Write an example; the classes are not known yet."""

    @abstractmethod
    def finish(self, summary: DatasetSummary) -> None:
        """Write what needs all classes, which are in their final order here."""

    def close(self) -> None:
        """Close what is open."""
        self._spool.close()

    @staticmethod
    def _write_picture(folder: Path, example: Example) -> None:
        with (folder / example.file_name).open("xb") as file:
            file.write(example.picture.content)


_VISIBLE: Final = 2


class CocoWriter(DatasetWriter):
    """Writes `images/` and `annotations.json`, or what the two are to be called."""

    def __init__(
        self,
        folder: Path,
        *,
        pictures: str = "images",
        file: str = "annotations.json",
        classifications: str | None = None,
    ) -> None:
        """`classifications`: the file of the labels of whole pictures; None: they are annotations
        without a box."""
        super().__init__(folder)
        self._classifications = classifications
        self._pictures, self._file = folder / pictures, folder / file
        self._pictures.mkdir()
        self._keypoints: dict[str, dict[int, str | None]] = {}

    def add(self, example: Example) -> None:
        """Write the picture, and remember what is on it."""
        self._write_picture(self._pictures, example)
        image = {"file_name": example.file_name, **format_example(example)}
        for annotation in example.annotations:
            names = self._keypoints.setdefault(annotation.label, {})
            for keypoint, _ in annotation.keypoints:
                names[keypoint.index] = names.get(keypoint.index) or keypoint.name
        self._spool.add(
            {"image": image, "annotations": [*map(format_annotation, example.annotations)]}
        )

    def finish(self, summary: DatasetSummary) -> None:
        """Write the file: records are read from disk one after the other."""
        categories = [
            _make_category(number, label, self._keypoints.get(label, {}))
            for number, label in enumerate(summary.classes, 1)
        ]
        by_label = {category["name"]: category for category in categories}
        with self._file.open("x", encoding="utf-8") as file:
            file.write('{"info": ' + write_record(_make_info(summary)))
            file.write(', "licenses": []\n, "images": [\n')
            images = ({"id": n, **record["image"]} for n, record in enumerate(self._spool, 1))
            _write_items(file, images)
            file.write('], "annotations": [\n')
            is_annotation = self._classifications is None
            _write_items(file, _list_annotations(self._spool, by_label, is_annotation))
            file.write('], "categories": [\n')
            _write_items(file, categories)
            file.write("]}\n")
        if self._classifications is not None and summary.labels:
            labels = {
                image["uid"]: {"label": image["label"], "confidence": image["classes"][0]["score"]}
                for image in (record["image"] for record in self._spool)
                if image["label"] is not None
            }
            text = write_record({"classes": None, "labels": labels})
            (self._folder / self._classifications).write_text(text)


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


def _list_annotations(
    spool: Iterable[Any], categories: Mapping[str, dict[str, Any]], has_labels: bool
) -> Iterator[dict[str, Any]]:
    ids = count(1)
    for image_id, record in enumerate(spool, 1):
        image = record["image"]
        if has_labels and image["label"] is not None:
            yield {
                "id": next(ids),
                "image_id": image_id,
                "category_id": categories[image["label"]]["id"],
                "score": image["classes"][0]["score"],
            }
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


_DIGITS: Final = 6


class YoloWriter(DatasetWriter):
    """Writes `images/`, `labels/` and `data.yaml`, or pictures with a class of the whole into
    `train/<class>/`; and `inferences.jsonl`: whose picture is whose."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._images, self._labels = folder / "images", folder / "labels"
        self._images.mkdir()
        self._labels.mkdir()

    def add(self, example: Example) -> None:
        """Write the picture, and remember its boxes."""
        self._write_picture(self._images, example)
        record = {
            "file_name": f"images/{example.file_name}",
            **format_example(example),
            "scores": [annotation.score for annotation in example.annotations],
        }
        labels = [
            [annotation["label"], _format_box(annotation["bbox"], example.picture.size)]
            for annotation in map(format_annotation, example.annotations)
        ]
        self._spool.add({"record": record, "labels": labels})

    def finish(self, summary: DatasetSummary) -> None:
        """Write the labels by the index of their class, and the names of the classes."""
        indexes = {label: index for index, label in enumerate(summary.classes)}
        folders = _name_folders(summary.classes)
        with (self._folder / "inferences.jsonl").open("x", encoding="utf-8") as sidecar:
            for item in self._spool:
                record = item["record"]
                if record["label"] is not None and not item["labels"]:
                    self._move(record, f"train/{folders[record['label']]}")
                else:
                    name = Path(record["file_name"]).with_suffix(".txt").name
                    lines = [f"{indexes[label]} {box}\n" for label, box in item["labels"]]
                    (self._labels / name).write_text("".join(lines))
                sidecar.write(write_record(record))
        if summary.labels and not any(self._images.iterdir()):
            self._images.rmdir()
            self._labels.rmdir()
        else:
            (self._folder / "data.yaml").write_text("".join(_list_lines(summary.classes)))

    def _move(self, record: dict[str, Any], folder: str) -> None:
        """Move a picture into the folder of its class."""
        (self._folder / folder).mkdir(parents=True, exist_ok=True)
        target = f"{folder}/{Path(record['file_name']).name}"
        (self._folder / record["file_name"]).rename(self._folder / target)
        record["file_name"] = target


_PLAIN: Final = re.compile(r"\w[\w .()+-]*\w|\w")
_MOST_BYTES: Final = 100
_TAKEN: Final = re.compile(r"class-\d+|(con|prn|aux|nul|(com|lpt)\d)\s*(\..*)?")
"""Of what `_fold` returns: the folders of other labels, and the devices of Windows."""


def _name_folders(classes: Sequence[str]) -> Mapping[str, str]:
    """Return the name of the folder of each class: the label, if every system takes it as such."""
    spellings = Counter(map(_fold, classes))
    return {
        label: label if spellings[_fold(label)] == 1 and _is_folder(label) else f"class-{index}"
        for index, label in enumerate(classes)
    }


def _is_folder(label: str) -> bool:
    is_plain = _PLAIN.fullmatch(label) and not _TAKEN.fullmatch(_fold(label))
    return bool(is_plain) and len(label.encode()) <= _MOST_BYTES


def _fold(label: str) -> str:
    """Return what labels share whose folders some system takes for one."""
    return normalize("NFKC", label).casefold()


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


SHARD_BYTES: Final = 256 * 1024 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
_INDEX_DIGITS: Final = 10
_END: Final = tarfile.RECORDSIZE
"""The most that the end of a tar file takes."""


class WebDatasetWriter(DatasetWriter):
    """Writes `shard-000000.tar` and so on: `<uid>.jpg` (or `txt`) and `<uid>.json` of each example,
    and `<uid>.cls` with the index of its class, which is filled in at the end.

    A shard has up to `shard_bytes`, or one example. The same examples give the same bytes.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        if shard_bytes < 1:
            raise SettingsError("shard_bytes is a number of bytes, at least 1")
        super().__init__(folder)
        self._shard_bytes = shard_bytes
        self._shard: tarfile.TarFile | None = None
        self._shards = self._bytes = 0

    def add(self, example: Example) -> None:
        """Write an example into the shard that is open, or into the next one."""
        annotations = [*map(format_annotation, example.annotations)]
        record = {**format_example(example), "annotations": annotations}
        key = str(example.inference.uid)
        members = [
            (example.file_name, example.picture.content),
            (f"{key}.json", write_record(record).encode()),
        ]
        if example.label is not None:
            members.append((f"{key}.cls", b" " * _INDEX_DIGITS))
        size = sum(_BLOCK + -(-len(content) // _BLOCK) * _BLOCK for _, content in members)
        shard = self._open_shard(size)
        for name, content in members:
            shard.addfile(_make_header(name, len(content)), io.BytesIO(content))
        self._bytes += size
        if example.label is not None:
            # the last member: its content is in the last block
            at = shard.offset - _BLOCK
            self._spool.add({"shard": str(shard.name), "at": at, "label": example.label})

    def finish(self, summary: DatasetSummary) -> None:
        """Close the last shard, and write the classes: their indexes and their names."""
        self._close_shard()
        indexes = {label: index for index, label in enumerate(summary.classes)}
        for name, places in groupby(self._spool, key=itemgetter("shard")):
            with open(name, "r+b") as shard:
                for place in places:
                    shard.seek(place["at"])
                    shard.write(str(indexes[place["label"]]).ljust(_INDEX_DIGITS).encode())
        lines = [
            write_record({"index": n, "label": label}) for n, label in enumerate(summary.classes)
        ]
        (self._folder / "classes.jsonl").write_text("".join(lines), encoding="utf-8")

    def close(self) -> None:
        """Close the shard too."""
        super().close()
        self._close_shard()

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _open_shard(self, size: int) -> tarfile.TarFile:
        if self._shard is not None and self._bytes + size + _END > self._shard_bytes:
            self._close_shard()
        if self._shard is None:
            path = self._folder / f"shard-{self._shards:06d}.tar"
            self._shard = tarfile.open(path, "x", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            self._shards, self._bytes = self._shards + 1, 0
        return self._shard


def _make_header(name: str, size: int) -> tarfile.TarInfo:
    """Return a header without times and owners: it says nothing of this machine."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header


class HuggingFaceWriter(DatasetWriter):
    """Writes pictures and `metadata.jsonl`, or texts into `data.jsonl`.

    Metadata is one text of JSON: Arrow would not hold keys of several types, nor whole numbers
    beyond 64 bits.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._files: dict[str, IO[str]] = {}

    def add(self, example: Example) -> None:
        """Write the picture and its line, or the line of a text."""
        boxes = [annotation.box for annotation in example.annotations]
        described = format_example(example)
        record = {
            **described,
            "score": example.classes[0].score if example.label is not None else None,
            "objects": {
                "bbox": [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in boxes],
                "label": [annotation.label for annotation in example.annotations],
                "score": [annotation.score for annotation in example.annotations],
                "area": [annotation.area for annotation in example.annotations],
            },
            "classes": json.dumps(described["classes"]),
            "metadata": json.dumps(described["metadata"]),
        }
        if example.picture.suffix == TEXT:
            self._write("data.jsonl", {"text": example.picture.content.decode(), **record})
            return
        self._write_picture(self._folder, example)
        self._write("metadata.jsonl", {"file_name": example.file_name, **record})

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("x", encoding="utf-8")
        self._files[name].write(write_record(record))

    def finish(self, summary: DatasetSummary) -> None:
        """Labels are texts: `class_encode_column` makes a `ClassLabel` of them."""

    def close(self) -> None:
        """Close the files too."""
        super().close()
        for file in self._files.values():
            file.close()


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A format: its name, what must be installed, and what writes it."""

    name: str
    title: str
    make_writer: Callable[[Path], DatasetWriter]
    has_outlines: bool = False
    """Whether contours and keypoints are in it; each is a request more for an inference."""
    unsupported: frozenset[str] = frozenset()
    """Suffixes of pictures that its readers skip."""
    has_texts: bool = False
    """Whether an input may be a text, such as JSON, in place of a picture."""


_FORMATS: Final = (
    DatasetFormat("coco", "COCO", CocoWriter, has_outlines=True),
    DatasetFormat("yolo", "YOLO", YoloWriter, unsupported=frozenset({"gif"})),
    DatasetFormat(
        "fiftyone",
        "FiftyOne",
        partial(
            CocoWriter,
            pictures="data",
            file="labels.json",
            classifications="classifications.json",
        ),
        has_outlines=True,
    ),
    DatasetFormat(
        "huggingface",
        "Hugging Face datasets",
        HuggingFaceWriter,
        unsupported=frozenset({"avif"}),
        has_texts=True,
    ),
    DatasetFormat("webdataset", "WebDataset", WebDatasetWriter, has_outlines=True, has_texts=True),
)
FORMATS: Final[Mapping[str, DatasetFormat]] = {each.name: each for each in _FORMATS}
"""Every format by name."""


def find_format(name: str) -> DatasetFormat:
    """Return the format of a name. Raises SettingsError."""
    try:
        return FORMATS[name]
    except KeyError:
        raise SettingsError(f"no format {name!r}: there are {', '.join(FORMATS)}") from None
