"""Passes record batches that aiokafka (0.14) cannot read, and bounds their size.

Kafka accepts such batches, and they must not stop the pipeline: a header's name that is not UTF-8,
or compressed data with bytes after its end. aiokafka raises from every call of `getmany`, which
returns to the same batch each time: all partitions stop. No setting changes that. So the fetcher
gets batches in which all from the first unreadable record on is one record, which becomes a dead
letter, and goes on behind them; if memory is short, the caller waits. Everything else is
aiokafka's: checksums, codecs, aborted transactions, markers, positions.

1 MiB of zstd can be gigabytes, and aiokafka's decoders have no bound: a huge batch would end the
process each time it is fetched. So they are replaced in the modules that call them. A batch over
the bound is unreadable.
"""

import asyncio
import gzip
import io
import mmap
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import cramjam
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.consumer import fetcher
from aiokafka.errors import KafkaError, KafkaTimeoutError, UnsupportedCodecError
from aiokafka.record import default_records, legacy_records
from aiokafka.record._crecords import default_records as fast_default_records
from aiokafka.record._crecords import legacy_records as fast_legacy_records
from aiokafka.record.default_records import _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords

from inference_store.index.unsettled import UNREADABLE, Rejection
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


def accept_unreadable_records() -> None:
    """Make consumers never raise for a record's content; see `find_fault`. It may be repeated."""
    fetcher.MemoryRecords = _Batches


def find_fault(record: ConsumerRecord) -> Rejection | None:
    """Return why a record is invalid, whatever its payload is; None: it is valid."""
    if isinstance(record.value, Unreadable):
        return Rejection(UNREADABLE, record.value.why)
    return None


class Unreadable(bytes):
    """The value of a record that stands for the rest of its batch: the bytes of the batch."""

    why: str


class _Batches(MemoryRecords):  # type: ignore[misc]
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._remaining = memoryview(data)

    def next_batch(self) -> Any:
        batch = super().next_batch()
        if batch is None:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._remaining)[0]
        raw, self._remaining = self._remaining[:end], self._remaining[end:]
        # Markers are Kafka's own, and the formats before the second are no longer written.
        return _Batch(batch, raw) if batch.magic == 2 and not batch.is_control_batch else batch


class _Batch:
    """A batch that ends with an `Unreadable` record where its reader fails: what follows in it is
    passed."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        next = self._batch.base_offset
        # A codec's library may raise anything: the checksum proves that the bytes were so produced.
        try:
            for record in self._batch:
                next = record.offset + 1
                yield record
        except (UnsupportedCodecError, MemoryShort):
            raise
        except MemoryError as error:
            raise MemoryShort("no memory to read a record batch") from error
        except Exception as error:  # as above: it is named as one that cannot be read
            value, last = Unreadable(self._raw), self._batch.next_offset - 1
            if next > last:
                return  # all records were read, and only bytes behind them were not
            value.why = (
                f"the records from offset {next} to {last} cannot be read: {error!r};"
                " the payload is their whole batch"
            )
            at, kind = self._batch.max_timestamp, self._batch.timestamp_type
            yield _DefaultRecordPy(next, at, kind, None, value, [])


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


@asynccontextmanager
async def require_answer(who: str, seconds: float) -> AsyncIterator[None]:
    """Raise KafkaTimeoutError if the block takes longer: aiokafka itself would wait for 40 s, and
    meanwhile nothing else is read."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise KafkaTimeoutError(f"{who} does not answer within {seconds:g} s") from error


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
