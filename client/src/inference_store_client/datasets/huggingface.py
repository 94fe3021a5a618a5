"""Hugging Face datasets: an image folder with a line of metadata for each picture."""

import json
from pathlib import Path

from .examples import Example
from .json_records import format_inference, format_metadata, write_record
from .summary import DatasetSummary


class ImageFolderWriter:
    """Writes pictures and `metadata.jsonl`.

    Metadata is one text of JSON: Arrow would not hold keys of several types, nor whole numbers
    beyond 64 bits.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / "metadata.jsonl").open("x", encoding="utf-8")

    def add(self, example: Example) -> None:
        """Write the picture and its line."""
        with (self._folder / example.file_name).open("xb") as file:
            file.write(example.picture.content)
        width, height = example.picture.size
        boxes = [annotation.box for annotation in example.annotations]
        record = {
            "file_name": example.file_name,
            **format_inference(example.inference),
            "width": width,
            "height": height,
            "objects": {
                "bbox": [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in boxes],
                "label": [annotation.label for annotation in example.annotations],
                "score": [annotation.score for annotation in example.annotations],
                "area": [annotation.area for annotation in example.annotations],
            },
            "metadata": json.dumps(format_metadata(example.inference.metadata)),
        }
        self._file.write(write_record(record))

    def finish(self, _: DatasetSummary, /) -> None:
        """Close the file. The labels are texts: `ClassLabel` can be made of them."""
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._file.close()
