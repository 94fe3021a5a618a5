"""The decompressed size of a batch is bounded, whatever decodes it."""

import errno
import tracemalloc
from collections.abc import Iterator
from itertools import product
from types import ModuleType

import pytest
from aiokafka import codec
from aiokafka.errors import KafkaError
from aiokafka.record import default_records
from aiokafka.record._crecords import default_records as fast

from inference_store.ingester import record_batches
from inference_store.ingester.record_batches import BatchTooLarge, MemoryShort, bound_decompression

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small bound, and aiokafka as it was afterwards."""
    monkeypatch.setattr(record_batches, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(record_batches._room, "_pages", None)
    before = [(m, n, getattr(m, n)) for m in record_batches._MODULES
        for n in record_batches.DECODERS
              if hasattr(m, n)]  # fmt: skip
    yield
    for module, name, decode in before:
        setattr(module, name, decode)


def make_batch(kind: int, value: bytes) -> bytes:
    """A batch of one record, as a producer sends it."""
    builder = default_records.DefaultRecordBatchBuilder(2, kind, False, -1, -1, -1, 10_000_000)
    builder.append(0, 1, b"key", value, [])
    return bytes(builder.build())


def read(records: ModuleType, data: bytes) -> list[bytes]:
    return [record.value for record in records.DefaultRecordBatch(bytearray(data))]


def decode(name: str, data: bytes) -> bytes:
    return bytes(record_batches.DECODERS[f"{name}_decode"](data))


def encode(name: str, data: bytes) -> bytes:
    return bytes(getattr(codec, f"{name}_encode")(data))


def test_a_bomb_is_refused_and_batches_within_the_bound_are_read(subtests: pytest.Subtests) -> None:
    bound_decompression()
    bound_decompression()
    for (name, kind), records in product(CODECS.items(), (default_records, fast)):
        with subtests.test(name, records=records.__name__):
            good, bomb = make_batch(kind, b"x" * 900_000), make_batch(kind, b"\0" * 9_000_000)
            assert read(records, good) == [b"x" * 900_000]
            tracemalloc.start()
            try:
                with pytest.raises(BatchTooLarge, match="larger than 1000000 bytes"):
                    read(records, bomb)
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
            finally:
                tracemalloc.stop()
            assert read(records, good) == [b"x" * 900_000]
    for name, size in product(CODECS, (0, 1, 300, 999_000)):
        data = (b"0123456789" * (size // 10 + 1))[:size]
        assert decode(name, encode(name, data)) == data, (name, size)


def test_blocks_count_together_and_every_damage_is_one_error(subtests: pytest.Subtests) -> None:
    blocks = bytes(codec.snappy_encode(b"\0" * 1_200_000, xerial_compatible=True))
    with pytest.raises(BatchTooLarge):
        decode("snappy", blocks)
    raw = bytes(codec.snappy_encode(b"\0" * 900_000, xerial_compatible=False))
    assert decode("snappy", raw) == b"\0" * 900_000
    with pytest.raises(BatchTooLarge):
        decode("gzip", encode("gzip", b"\0" * 600_000) * 2)
    for name in CODECS:
        for damaged in (b"no such thing" * 10, encode(name, b"x" * 999)[:-5]):
            with (
                subtests.test(name, damaged=damaged),
                pytest.raises(KafkaError, match="cannot be decompressed"),
            ):
                decode(name, damaged)


class NoRoom:
    """The module mmap in a process that gets no memory."""

    @staticmethod
    def mmap(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


def without_memory(_: bytes) -> bytes:
    raise MemoryError


def test_lack_of_memory_is_not_reported_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4", "zstd"):
        good = encode(name, b"x" * 999)
        with monkeypatch.context() as short:
            short.setattr(record_batches, "mmap", NoRoom)
            short.setattr(record_batches._room, "_pages", None)
            with pytest.raises(MemoryShort, match="Cannot allocate memory"):
                decode(name, good)
            with pytest.raises(MemoryShort):
                bound_decompression()
        assert decode(name, good) == b"x" * 999, name
    with pytest.raises(MemoryShort):
        record_batches._translate_errors(without_memory)(b"")
