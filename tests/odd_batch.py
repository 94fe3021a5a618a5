"""Record batches that no client would make, with header names that are not UTF-8."""

from collections.abc import Sequence

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Headers = Sequence[tuple[str, bytes | None]]


class Name(str):
    """A header name with bytes that the test chooses."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, *_: object) -> bytes:
        return self.raw


def make_odd_name(raw: bytes) -> Name:
    name = Name("odd")
    name.raw = raw
    return name


class OddBatch(BatchBuilder):
    """A batch for `AIOKafkaProducer.send_batch` in a codec, with header names of any bytes."""

    def __init__(
        self, codec: str = "none", *, transactional: bool = False, producer_id: int = -1
    ) -> None:
        super().__init__(1 << 20, CODECS[codec], is_transactional=int(transactional))
        self._builder = _DefaultRecordBatchBuilderPy(
            2, CODECS[codec], int(transactional), producer_id, 0, 0, 1 << 20
        )

    def add(self, value: bytes, headers: Headers = ()) -> None:
        assert self.append(timestamp=None, key=None, value=value, headers=list(headers))

    def _set_producer_state(self, *state: int) -> None:
        self._builder.set_producer_state(*state)

    def spoil(self) -> "OddBatch":
        """Append junk to the compressed data; Kafka accepts it with gzip and lz4."""
        self._buffer = bytearray(add_junk(bytes(self._build())))
        return self

    def encode_batch(self, base_offset: int = 0) -> bytes:
        """Return the bytes of the batch as a broker would return them."""
        return base_offset.to_bytes(8, "big") + bytes(self._build())[8:]


def add_junk(batch: bytes) -> bytes:
    return update_length(batch + b"junkjunkjunk")


def update_length(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    return update_checksum(changed)


def update_checksum(batch: bytearray) -> bytes:
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)
