"""Bounds the size of decompressed batches: 1 MiB of zstd can be gigabytes.

aiokafka's decoders have no bound, and no setting for one: a huge batch would end the process each
time it is fetched. So they are replaced in the modules that call them. The records of a batch over
the bound become dead letters; see record_batches.py.
"""

import gzip
import io
import mmap
import struct
import zlib
from collections.abc import Callable

import cramjam
from aiokafka.errors import KafkaError
from aiokafka.record import default_records, legacy_records
from aiokafka.record._crecords import default_records as fast_default_records
from aiokafka.record._crecords import legacy_records as fast_legacy_records

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
