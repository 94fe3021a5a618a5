"""A part as a Parquet file (zstd), written by arro3 from Arrow's record batches."""

from collections.abc import Sequence
from typing import Any, BinaryIO, Final

import nanoarrow as na
from nanoarrow.c_array_stream import CArrayStream

from .arrow_batches import BatchBuilder
from .columns import Columns
from .fixed_columns import Row

_COMPRESSION: Final = "zstd(3)"


class ParquetPart:
    """Collects the batches of a part, and writes them as one row group when it is closed."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._columns, self._file = columns, file
        self._builder = BatchBuilder(columns.list_all())
        self._batches: list[Any] = []

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        if rows:
            self._batches.append(self._builder.build(self._columns.read(rows), len(rows)))

    def close(self) -> None:
        """See PartEncoder."""
        from arro3.io import write_parquet  # noqa: PLC0415  (an extra)

        schema = na.c_schema(self._builder.build_schema())
        stream = CArrayStream.from_c_arrays(self._batches, schema, validate=False)
        write_parquet(stream, self._file, compression=_COMPRESSION)
        self._batches.clear()
