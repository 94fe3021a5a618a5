"""A part as JSON lines: of each inference the object that lines of the API have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from inference_store.platform.json_encoding import encode_json

from .columns import Columns
from .fixed_columns import Row
from .part_object import ObjectFormat


class LinePart:
    """Writes a line for each inference. Metadata and predictions are whole, if they are
    included. `reshape`: makes another object of the API's."""

    def __init__(
        self,
        columns: Columns,
        file: BinaryIO,
        *,
        reshape: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda item: item,
    ) -> None:
        self._file, self._format, self._reshape = file, ObjectFormat(columns), reshape

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        for row in rows:
            item = self._reshape(self._format.build(row))
            self._file.write(encode_json(item, times_fit=True) + b"\n")

    def close(self) -> None:
        """See PartEncoder."""
