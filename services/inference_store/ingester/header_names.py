"""Header names that are not UTF-8: Kafka takes any bytes, and aiokafka reads none of them.

aiokafka (0.14) decodes the name of a header strictly while it goes through a record batch. One
such name raises UnicodeDecodeError out of `getmany`, on every call, for it goes back to the same
batch each time: the partition stands still, and the others with it. No setting changes that. So
the fetcher is given batches that read on tolerantly from where the strict reader gave up. All
else stays aiokafka's: checksums, codecs, aborted transactions, markers, positions.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

# A batch begins with its first offset (8 bytes) and the length of what follows.
_LENGTH = struct.Struct(">8xi")


def read_any_header_name() -> None:
    """From now on consumers give bytes that are no UTF-8 as lone surrogates. Repeatable."""
    fetcher.MemoryRecords = _Batches


def header_fault(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """What is wrong with a record's headers; None where nothing is."""
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = printable(name)[:100]
            return f"the header name {shown!r} is not UTF-8; redriven, the event is indexed"
    return None


def printable(name: str) -> str:
    """A header's name without lone surrogates: bytes that are no UTF-8 as `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class _Batches:
    """The record batches of one answer of the broker, as the fetcher asks for them."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._records = MemoryRecords(data)

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if batch is None:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        raw, self._data = self._data[:end], self._data[end:]
        # Markers have no headers, nor had the formats before the second.
        return _Batch(batch, raw) if batch.magic == 2 and not batch.is_control_batch else batch


class _Batch:
    """A batch whose records are read strictly, and tolerantly after the first that cannot be."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        read = 0
        try:
            for record in self._batch:
                read += 1
                yield record
        except UnicodeDecodeError:
            pass
        else:
            return
        yield from islice(_TolerantBatch(self._raw), read, None)


class _TolerantBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """aiokafka's own reader in Python, over bytes that decode whatever they are."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Tolerant(self._buffer)


class _Tolerant(bytearray):
    """Bytes that are decoded as UTF-8 where they are."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Tolerant(found) if isinstance(found, bytearray) else found

    def decode(self, *_: Any, **__: Any) -> str:
        return super().decode("utf-8", "surrogateescape")
