"""Record batches that aiokafka cannot read: Kafka takes them, and they must not stop the pipeline.

aiokafka (0.14) decodes the name of a header strictly, while Kafka takes any bytes; and it refuses
compressed data with something behind its end, which Kafka does not look at. Either raises out of
`getmany`, on every call, for it goes back to the same batch each time: the partition stands still,
and the others with it. No setting changes that. So the fetcher is given batches that read on
tolerantly from where the strict reader gave up, and that give what cannot be read at all as it
is; but where memory is short, it is waited for. All else stays aiokafka's: checksums, codecs,
aborted transactions, markers, positions.
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

from inference_store.index.records import Trouble

from .decompression import MemoryShort

# A batch begins with its first offset (8 bytes) and the length of what follows.
_LENGTH = struct.Struct(">8xi")
_NO_MEMORY = "no memory to read a record batch"


def accept_unreadable_records() -> None:
    """From now on consumers raise for no record's content; see `fault_of`. Repeatable."""
    fetcher.MemoryRecords = _Batches


def find_fault(record: ConsumerRecord) -> Trouble | None:
    """What is wrong with a record, whatever its payload is; None where nothing is."""
    if isinstance(record.value, Unreadable):
        return Trouble("unreadable_record", record.value.why)
    for name, _ in record.headers:
        try:
            name.encode()
        except UnicodeEncodeError:
            detail = f"the header name {escape_surrogates(name)[:100]!r} is not UTF-8"
            return Trouble("invalid_header", detail)
    return None


def escape_surrogates(name: str) -> str:
    """A header's name without lone surrogates: bytes that are no UTF-8 as `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Unreadable(bytes):
    """The value of a record that cannot be read: its batch at the first of them, else nothing."""

    why: str


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
        # Markers are Kafka's own, and the formats before the second are no longer written.
        return _Batch(batch, raw) if batch.magic == 2 and not batch.is_control_batch else batch


class _Batch:
    """A batch whose records are read strictly, and tolerantly after the first that cannot be."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        read, next = 0, self._batch.base_offset
        # Whatever a codec's library raises: the checksum says that this is what was produced.
        try:
            for record in self._batch:
                read, next = read + 1, record.offset + 1
                yield record
        except MemoryShort:
            raise
        except MemoryError as error:
            raise MemoryShort(_NO_MEMORY) from error
        except Exception:  # as above: what is left is read below
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
    """aiokafka's own reader in Python, over bytes that decode whatever they are."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Tolerant(self._buffer)

    def _read_msg(self) -> Any:
        # aiokafka's compiled varints are read past the end of the bytes: where a length is wrong,
        # the process would die by SIGSEGV. Those in Python raise IndexError.
        return super()._read_msg(decode_varint_py)


class _Tolerant(bytearray):
    """Bytes that are decoded as UTF-8 where they are."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Tolerant(found) if isinstance(found, bytearray) else found

    def decode(self, *_: Any, **__: Any) -> str:
        return super().decode("utf-8", "surrogateescape")
