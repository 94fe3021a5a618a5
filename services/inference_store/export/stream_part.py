"""A part in a format of streams: each page is in the file as soon as it is added."""

from collections.abc import Callable, Sequence
from typing import BinaryIO

from .columns import Columns
from .fixed_columns import Row
from .formats import Encoder
from .kinds import Column


class StreamPart:
    """Writes a part as the stream of the same format is, without cursors."""

    def __init__(
        self, make_encoder: Callable[[Sequence[Column]], Encoder], columns: Columns, file: BinaryIO
    ) -> None:
        self._columns, self._file = columns, file
        self._encoder = make_encoder(columns.list_all())
        file.write(self._encoder.encode_head({}))

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        if rows:
            self._file.write(self._encoder.encode_page(self._columns.read(rows), len(rows)))

    def close(self) -> None:
        """See PartEncoder."""
        self._file.write(self._encoder.encode_end())
