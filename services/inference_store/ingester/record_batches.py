"""Reads record batches that aiokafka (0.14) cannot read, and bounds their size.

Kafka accepts such batches, and they must not stop the pipeline. aiokafka decodes the name of a
header strictly, while Kafka accepts any bytes; and it refuses compressed data with bytes after its
end, which Kafka ignores. Both raise from every call of `getmany`, which returns to the same batch
each time: all partitions stop. No setting changes that. So the fetcher gets batches that continue
tolerantly after the strict reader failed, and that return unreadable bytes as they are; if memory
is short, the caller waits. Everything else is aiokafka's: checksums, codecs, aborted transactions,
markers, positions.

1 MiB of zstd can be gigabytes, and aiokafka's decoders have no bound: a huge batch would end the
process each time it is fetched. So they are replaced in the modules that call them. The records of
a batch over the bound become dead letters.
"""

import asyncio
import gzip
import io
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import cramjam
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError, UnsupportedCodecError
from aiokafka.record import default_records, legacy_records
from aiokafka.record._crecords import default_records as fast_default_records
from aiokafka.record._crecords import legacy_records as fast_legacy_records
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint_py

from inference_store.index.unsettled import Rejection
from inference_store.platform.kafka import client_arguments
from inference_store.platform.settings import KafkaSettings

MOST_BYTES = 64 * 1024 * 1024
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_DAMAGED = (cramjam.DecompressionError, zlib.error, struct.error, OSError, EOFError)
_MODULES = (default_records, legacy_records, fast_default_records, fast_legacy_records)


class BatchTooLarge(KafkaError):  # type: ignore[misc]
    """A decompressed batch is larger than the bound."""

    def __init__(self) -> None:
        super().__init__(f"it becomes larger than {MOST_BYTES} bytes")


class MemoryShort(KafkaError):  # type: ignore[misc]
    """This process has no memory for a batch now. The batch may be sound: wait."""


def bound_decompression() -> None:
    """Replace aiokafka's decoders by the bounded ones; repeating it is harmless.

    Raises MemoryShort if there is no memory for the buffer.
    """
    _room.pages()
    for module in _MODULES:
        for name, decode in DECODERS.items():
            if hasattr(module, name):
                setattr(module, name, decode)


def _gzip(payload: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BatchTooLarge
    return content


def _snappy(payload: bytes) -> bytes:
    if not payload.startswith(_XERIAL):
        return _snappy_block(payload, MOST_BYTES)
    blocks, at, remaining = [], _XERIAL_HEADER_BYTES, MOST_BYTES
    while at < len(payload):
        (size,) = struct.unpack_from("!I", payload, at)
        blocks.append(_snappy_block(payload[at + 4 : at + 4 + size], remaining))
        at, remaining = at + 4 + size, remaining - len(blocks[-1])
    return b"".join(blocks)


def _snappy_block(block: bytes, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > most:
        raise BatchTooLarge
    return bytes(cramjam.snappy.decompress_raw(block))


class _Room:
    """The buffer in which batches are decompressed one after the other: one event loop reads Kafka.

    It is reused, because fresh pages cost more than the decompression. Pages that were never
    written cost nothing.
    """

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def pages(self) -> mmap.mmap:
        """Return the buffer; the first call allocates it. Raises MemoryShort."""
        if self._pages is None:
            try:
                self._pages = mmap.mmap(-1, MOST_BYTES)
            except OSError as error:
                raise MemoryShort(f"no room to decompress in: {error}") from error
        return self._pages

    def decoder(self, into: Callable[[bytes, mmap.mmap], int]) -> Callable[[bytes], bytes]:
        """Return a bounded decoder that uses one that writes into a buffer."""

        def decode(payload: bytes) -> bytes:
            pages = self.pages()
            try:
                return pages[: into(payload, pages)]
            except cramjam.DecompressionError as error:
                if "whole buffer" in str(error):
                    raise BatchTooLarge from None
                raise

        return decode


def _translate_errors(decode: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a decoder that raises KafkaError for damaged data, MemoryShort for lack of memory."""

    def decode_or_refuse(payload: bytes) -> bytes:
        try:
            return decode(payload)
        except MemoryError as error:
            raise MemoryShort("no memory to decompress a batch") from error
        except _DAMAGED as error:
            raise KafkaError(f"it cannot be decompressed: {error}") from error

    return decode_or_refuse


_room = _Room()
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip_decode": _translate_errors(_gzip),
    "snappy_decode": _translate_errors(_snappy),
    "lz4_decode": _translate_errors(_room.decoder(cramjam.lz4.decompress_into)),
    "zstd_decode": _translate_errors(_room.decoder(cramjam.zstd.decompress_into)),
}


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
    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return _Tolerant(item) if isinstance(item, bytearray) else item

    def decode(self, *_: Any, **__: Any) -> str:
        return super().decode("utf-8", "surrogateescape")


def make_consumer(settings: KafkaSettings, **arguments: Any) -> AIOKafkaConsumer:
    """Return a consumer that reads whatever is in a topic. Raises MemoryShort."""
    accept_unreadable_records()
    bound_decompression()
    return AIOKafkaConsumer(
        **client_arguments(settings),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        retry_backoff_ms=500,
        **arguments,
    )


# A frozen broker lets us wait for 40: without a word from us, Kafka takes our partitions in 10.
_LEAVE_SECONDS = 10.0
_log = structlog.get_logger()


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, so that others get its partitions at once.

    aiokafka (0.14) stops half-way with the CancelledError of its own fetch that waited for a
    broker. That would end our task without a message.
    """
    if (coordinator := consumer._coordinator) is not None:
        # Kafka would wait for a static member (KIP-345): without the name it leaves for good.
        coordinator._group_instance_id = None
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await consumer.stop()
    except (TimeoutError, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        if isinstance(error, TimeoutError):
            _log.warning("Kafka does not answer: left without a word", action="left_silently")
        await consumer._client.close()
