"""The decompressed size of a batch is bounded, whatever decodes it."""

import errno
import io
import tracemalloc
from collections.abc import Iterator
from types import ModuleType

import pytest
from aiokafka import codec
from aiokafka.errors import KafkaError
from aiokafka.record import default_records
from aiokafka.record._crecords import default_records as fast

from inference_store.ingester import decompression
from inference_store.ingester.decompression import BatchTooLarge, MemoryShort, bound_decompression

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ENCODERS = {name: getattr(codec, f"{name}_encode") for name in CODECS}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small bound, and aiokafka as it was afterwards."""
    monkeypatch.setattr(decompression, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(decompression._room, "_pages", None)
    before = [(m, n, getattr(m, n)) for m in decompression._MODULES for n in decompression.DECODERS
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


@pytest.mark.parametrize("records", [default_records, fast])
@pytest.mark.parametrize("name", CODECS)
def test_a_bomb_is_refused_and_a_batch_is_read(name: str, records: ModuleType) -> None:
    bound_decompression()
    bound_decompression()
    good, bomb = (
        make_batch(CODECS[name], b"x" * 900_000),
        make_batch(CODECS[name], b"\0" * 9_000_000),
    )
    assert read(records, good) == [b"x" * 900_000]
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge, match="larger than 1000000 bytes"):
            read(records, bomb)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert read(records, good) == [b"x" * 900_000]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [0, 1, 300, 999_000])
def test_decompresses_batches_within_the_bound(name: str, size: int) -> None:
    data = (b"0123456789" * (size // 10 + 1))[:size]
    assert decompression.DECODERS[f"{name}_decode"](bytes(ENCODERS[name](data))) == data


def test_blocks_of_snappy_count_together() -> None:
    plain = codec.snappy_encode(b"\0" * 1_200_000, xerial_compatible=True)
    with pytest.raises(BatchTooLarge):
        decompression.DECODERS["snappy_decode"](bytes(plain))
    raw = codec.snappy_encode(b"\0" * 900_000, xerial_compatible=False)
    assert decompression.DECODERS["snappy_decode"](bytes(raw)) == b"\0" * 900_000


@pytest.mark.parametrize("name", CODECS)
def test_every_damage_is_one_error(name: str) -> None:
    with pytest.raises(KafkaError, match="cannot be decompressed"):
        decompression.DECODERS[f"{name}_decode"](b"no such thing" * 10)
    with pytest.raises(KafkaError, match="cannot be decompressed"):
        decompression.DECODERS[f"{name}_decode"](bytes(ENCODERS[name](b"x" * 999))[:-5])


class NoRoom:
    """The module mmap in a process that gets no memory."""

    @staticmethod
    def mmap(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


def without_memory(_: bytes) -> bytes:
    raise MemoryError


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_lack_of_room_is_not_reported_as_damage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = bytes(ENCODERS[name](b"x" * 999))
    with monkeypatch.context() as short:
        short.setattr(decompression, "mmap", NoRoom)
        with pytest.raises(MemoryShort, match="Cannot allocate memory"):
            decompression.DECODERS[f"{name}_decode"](good)
        with pytest.raises(MemoryShort):
            bound_decompression()
    assert decompression.DECODERS[f"{name}_decode"](good) == b"x" * 999


def test_lack_of_memory_is_not_reported_as_damage() -> None:
    with pytest.raises(MemoryShort):
        decompression._translate_errors(without_memory)(b"")


def test_members_of_gzip_count_together() -> None:
    member = io.BytesIO(codec.gzip_encode(b"\0" * 600_000)).getvalue()
    with pytest.raises(BatchTooLarge):
        decompression.DECODERS["gzip_decode"](member * 2)
