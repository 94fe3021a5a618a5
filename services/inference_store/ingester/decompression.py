"""A bound on what a compressed batch may become: 1 MiB of zstd can be gigabytes.

aiokafka's decoders have none, and no setting for one; a batch over it would end the process each
time it is fetched. So they are replaced, in the modules of records that call them. What they
refuse is a batch that cannot be read: dead letters, see record_batches.py.
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
    """A batch becomes larger than is read."""

    def __init__(self) -> None:
        super().__init__(f"it becomes larger than {MOST_BYTES} bytes")


class MemoryShort(KafkaError):  # type: ignore[misc]
    """This process has no memory for a batch now, which says nothing about the batch: wait."""


def bound_decompression() -> None:
    """Put the bounded decoders in the place of aiokafka's; again is no harm.

    Raises MemoryShort where there is no room for them.
    """
    _room.pages()
    for module in _MODULES:
        for name, decode in DECODERS.items():
            if hasattr(module, name):
                setattr(module, name, decode)


def _gzip(payload: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise BatchTooLarge
    return found


def _snappy(payload: bytes) -> bytes:
    if not payload.startswith(_XERIAL):
        return _snappy_block(payload, MOST_BYTES)
    found, at, left = [], _XERIAL_HEADER_BYTES, MOST_BYTES
    while at < len(payload):
        (size,) = struct.unpack_from("!I", payload, at)
        found.append(_snappy_block(payload[at + 4 : at + 4 + size], left))
        at, left = at + 4 + size, left - len(found[-1])
    return b"".join(found)


def _snappy_block(block: bytes, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > most:
        raise BatchTooLarge
    return bytes(cramjam.snappy.decompress_raw(block))


class _Room:
    """Where batches are decompressed, one after the other: one event loop reads Kafka.

    Kept between them, as fresh pages cost more than the decompression. Those that nothing was
    ever written to cost nothing.
    """

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def pages(self) -> mmap.mmap:
        """The room, made where it is not yet. Raises MemoryShort."""
        if self._pages is None:
            try:
                self._pages = mmap.mmap(-1, MOST_BYTES)
            except OSError as error:
                raise MemoryShort(f"no room to decompress in: {error}") from error
        return self._pages

    def decoder(self, into: Callable[[bytes, mmap.mmap], int]) -> Callable[[bytes], bytes]:
        """A bounded decoder from one that writes into a buffer."""

        def decode(payload: bytes) -> bytes:
            pages = self.pages()
            try:
                return pages[: into(payload, pages)]
            except cramjam.DecompressionError as error:
                if "whole buffer" in str(error):
                    raise BatchTooLarge from None
                raise

        return decode


def _named(decode: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A decoder whose failures are all of one kind."""

    def named(payload: bytes) -> bytes:
        try:
            return decode(payload)
        except MemoryError as error:
            raise MemoryShort("no memory to decompress a batch") from error
        except _DAMAGED as error:
            raise KafkaError(f"it cannot be decompressed: {error}") from error

    return named


_room = _Room()
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip_decode": _named(_gzip),
    "snappy_decode": _named(_snappy),
    "lz4_decode": _named(_room.decoder(cramjam.lz4.decompress_into)),
    "zstd_decode": _named(_room.decoder(cramjam.zstd.decompress_into)),
}
