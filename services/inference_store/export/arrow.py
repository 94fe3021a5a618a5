"""Inferences as an Arrow IPC stream: a schema, a record batch for each page, the end's mark.

A stream that ends without its mark is not whole:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from nanoarrow.ipc import StreamWriter

from .arrow_batches import BatchBuilder
from .kinds import Column, Values


class ArrowEncoder:
    """Encodes pages of one export, each with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._batches = BatchBuilder(columns)
        self._written = BytesIO()
        self._writer = StreamWriter.from_writable(self._written)

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return the schema; `members` stand in its metadata, each as JSON."""
        metadata = {name: json.dumps(value, default=str) for name, value in members.items()}
        schema = self._batches.build_schema(metadata)
        self._write(self._batches.build([[] for _ in self._columns], 0, schema))
        return self._take()

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return the record batch of a page: the values of each column."""
        self._write(self._batches.build(values, length))
        return self._take()

    def encode_end(self) -> bytes:
        """Return the end's mark."""
        self._writer.close()
        return self._take()

    def _write(self, batch: Any) -> None:
        self._writer.write_stream(batch)

    def _take(self) -> bytes:
        content = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return content
