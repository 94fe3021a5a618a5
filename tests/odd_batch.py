"""Record batches that no client would make: header names that are not UTF-8."""

from collections.abc import Sequence

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Headers = Sequence[tuple[str, bytes | None]]


class Name(str):
    """A header's name whose bytes are what the test says."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, *_: object) -> bytes:
        return self.raw


def odd_name(raw: bytes) -> Name:
    """A name of these bytes."""
    name = Name("odd")
    name.raw = raw
    return name


class OddBatch(BatchBuilder):
    """A batch for `AIOKafkaProducer.send_batch`, in a codec; its header names are any bytes."""

    def __init__(
        self, codec: str = "none", *, transactional: bool = False, producer_id: int = -1
    ) -> None:
        super().__init__(1 << 20, CODECS[codec], is_transactional=int(transactional))
        self._builder = _DefaultRecordBatchBuilderPy(
            2, CODECS[codec], int(transactional), producer_id, 0, 0, 1 << 20
        )

    def add(self, value: bytes, headers: Headers = ()) -> None:
        """One more record."""
        assert self.append(timestamp=None, key=None, value=value, headers=list(headers))

    def _set_producer_state(self, *state: int) -> None:
        self._builder.set_producer_state(*state)

    def spoil(self) -> "OddBatch":
        """Put junk behind the end of what is compressed; Kafka takes it from gzip and lz4."""
        self._buffer = bytearray(with_junk(bytes(self._build())))
        return self

    def built(self, base_offset: int = 0) -> bytes:
        """Its bytes, as a broker would give them back."""
        return base_offset.to_bytes(8, "big") + bytes(self._build())[8:]


def with_junk(batch: bytes) -> bytes:
    """A compressed batch with bytes behind the end of what is compressed."""
    return with_length(batch + b"junkjunkjunk")


def with_length(batch: bytes) -> bytes:
    """A batch that was changed, with the length and the checksum that it has now."""
    changed = bytearray(batch)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    return with_checksum(changed)


def with_checksum(batch: bytearray) -> bytes:
    """A batch that was changed, with the checksum that it has now."""
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)
