"""Records on disk until all classes are known: memory does not grow with the dataset."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .json_records import write_record


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

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        self._path.unlink()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
