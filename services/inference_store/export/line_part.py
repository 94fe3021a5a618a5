"""A part as JSON lines: of each inference the object that lines of the API have, without links."""

from collections.abc import Sequence
from typing import BinaryIO

from inference_store.platform.json_encoding import encode_json

from .columns import Columns
from .fixed_columns import Row
from .inference_object import format_inference


class LinePart:
    """Writes a line for each inference. Metadata and predictions are whole, if they are
    included."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._file = file
        self._names = {column.name for column in columns.fixed}
        self._names |= set() if columns.metadata is None else {"metadata"}
        self._names |= set() if columns.predictions is None else {"predictions"}

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        self._file.write(b"".join(self._encode_line(row) for row in rows))

    def close(self) -> None:
        """See PartEncoder."""

    def _encode_line(self, row: Row) -> bytes:
        item = format_inference(row.model_id, row.inference)
        chosen = {name: value for name, value in item.items() if name in self._names}
        return encode_json(chosen, times_fit=True) + b"\n"
