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
_GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of blobs in a row group, unless a single row has more."""


class ParquetPart:
    """Puts the batches of a part on the disk as an Arrow stream, and makes of it the Parquet file
    when it is closed. So what is in memory is a page, and then a row group."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._file = file
        self._batches = TemporaryFile(prefix="inference-store-export-")  # noqa: SIM115  (see close)
        self._part = StreamPart(ArrowEncoder, columns, self._batches)
        self._sizes: list[int] = []  # of the blobs of each row
        self._copied = [column.name for column in columns.contents]

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        self._part.add(rows)
        if self._copied:
            self._sizes += map(_measure, rows)

    def close(self) -> None:
        """See PartEncoder."""
        from arro3.io import write_parquet  # noqa: PLC0415  (an extra)

        self._part.close()
        with self._batches as batches:
            batches.seek(0)
            stream = InputStream.from_readable(batches)
            write_parquet(
                stream,
                self._file,
                compression=_COMPRESSION,
                max_row_group_size=_count_group_rows(self._sizes),
                # a dictionary would be in memory beside the row group
                column_dictionary_enabled=dict.fromkeys(self._copied, False),
            )


def _measure(row: Row) -> int:
    return sum(len(content or b"") for content in (row.contents or {}).values())


def _count_group_rows(sizes: Sequence[int]) -> int:
    """Return how many rows a group has, so that no group has too many bytes."""
    rows = _GROUP_ROWS
    while rows > 1 and _measure_largest(sizes, rows) > _GROUP_BYTES:
        rows //= 2
    return rows


def _measure_largest(sizes: Sequence[int], rows: int) -> int:
    groups = (sizes[begin : begin + rows] for begin in range(0, len(sizes), rows))
    return max(map(sum, groups), default=0)
