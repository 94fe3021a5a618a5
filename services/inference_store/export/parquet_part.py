"""A part as a Parquet file (zstd), written by arro3 from Arrow's record batches."""

from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from nanoarrow.ipc import InputStream

from .arrow import ArrowEncoder
from .columns import Columns
from .fixed_columns import Row
from .stream_part import StreamPart

_COMPRESSION: Final = "zstd(3)"
_GROUP_ROWS: Final = 5_000
"""Rows of a row group, which arro3 holds in memory."""


class ParquetPart:
    """Puts the batches of a part on the disk as an Arrow stream, and makes of it the Parquet file
    when it is closed. So what is in memory is a page, and then a row group."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._file = file
        self._batches = TemporaryFile(prefix="inference-store-export-")  # noqa: SIM115  (see close)
        self._part = StreamPart(ArrowEncoder, columns, self._batches)

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        self._part.add(rows)

    def close(self) -> None:
        """See PartEncoder."""
        from arro3.io import write_parquet  # noqa: PLC0415  (an extra)

        self._part.close()
        with self._batches as batches:
            batches.seek(0)
            stream = InputStream.from_readable(batches)
            write_parquet(
                stream, self._file, compression=_COMPRESSION, max_row_group_size=_GROUP_ROWS
            )
