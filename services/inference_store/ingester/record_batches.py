"""Reads record batches that aiokafka cannot read: Kafka accepts them, and they must not stop the
pipeline.

aiokafka (0.14) decodes the name of a header strictly, while Kafka accepts any bytes; and it refuses
compressed data with bytes after its end, which Kafka ignores. Both raise from every call of
`getmany`, which returns to the same batch each time: all partitions stop. No setting changes that.
So the fetcher gets batches that continue tolerantly after the strict reader failed, and that return
unreadable bytes as they are; if memory is short, the caller waits. Everything else is aiokafka's:
checksums, codecs, aborted transactions, markers, positions.
"""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any

from aiokafka import ConsumerRecord
from aiokafka.consumer import fetcher
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint_py

from inference_store.index.unsettled import Rejection

from .decompression import MemoryShort

# A batch begins with its first offset (8 bytes) and the length of the rest.
_LENGTH = struct.Struct(">8xi")
_NO_MEMORY = "no memory to read a record batch"


def accept_unreadable_records() -> None:
    """Make consumers never raise for a record's content; see `find_fault`. It may be repeated."""
    fetcher.MemoryRecords = _Batches


def find_fault(record: ConsumerRecord) -> Rejection | None:
    """Return why a record is invalid, whatever its payload is; None: it is valid."""
    if isinstance(record.value, Unreadable):
        return Rejection("unreadable_record", record.value.why)
    for name, _ in record.headers:
        try:
            name.encode()
        except UnicodeEncodeError:
            detail = f"the header name {escape_surrogates(name)[:100]!r} is not UTF-8"
            return Rejection("invalid_header", detail)
    return None


def escape_surrogates(name: str) -> str:
    """Return a header's name without lone surrogates: invalid UTF-8 becomes `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Unreadable(bytes):
    """The value of an unreadable record: the whole batch for the first one, else empty."""

    why: str


class _Batches:
    """The record batches of one response of the broker, with the fetcher's interface."""

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
        # Markers are Kafka's own, and the formats before the second are no longer written.
        return _Batch(batch, raw) if batch.magic == 2 and not batch.is_control_batch else batch


class _Batch:
    """A batch whose records are read strictly, and tolerantly after the first unreadable one."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        read, next = 0, self._batch.base_offset
        # A codec's library may raise anything: the checksum proves that the bytes were so produced.
        try:
            for record in self._batch:
                read, next = read + 1, record.offset + 1
                yield record
        except MemoryShort:
            raise
        except MemoryError as error:
            raise MemoryShort(_NO_MEMORY) from error
        except Exception:  # as above: the rest is read below
            pass
        else:
            return
        try:
            for record in islice(_TolerantBatch(self._raw), read, None):
                next = record.offset + 1
                yield record
        except (UnsupportedCodecError, MemoryShort):
            raise
        except MemoryError as error:
            raise MemoryShort(_NO_MEMORY) from error
        except Exception as error:  # as above: each offset is named as one that cannot be read
            yield from self._unreadable(next, error)

    def _unreadable(self, first: int, error: Exception) -> Iterator[Any]:
        why = f"the record batch from offset {self._batch.base_offset} on cannot be read: {error!r}"
        raw = bytes(self._raw)
        for offset in range(first, self._batch.next_offset):
            value, raw = Unreadable(raw), b""
            value.why = f"{why}; its bytes are the payload of offset {first}"
            at, kind = self._batch.max_timestamp, self._batch.timestamp_type
            yield _DefaultRecordPy(offset, at, kind, None, value, [])


class _TolerantBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """aiokafka's own reader in Python, over bytes that can always be decoded."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Tolerant(self._buffer)

    def _read_msg(self) -> Any:
        # aiokafka's compiled varints read past the end of the bytes: a wrong length would kill the
        # process by SIGSEGV. Those in Python raise IndexError.
        return super()._read_msg(decode_varint_py)


class _Tolerant(bytearray):
    """Bytes that are decoded as UTF-8, with lone surrogates for invalid bytes."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return _Tolerant(item) if isinstance(item, bytearray) else item

    def decode(self, *_: Any, **__: Any) -> str:
        return super().decode("utf-8", "surrogateescape")
