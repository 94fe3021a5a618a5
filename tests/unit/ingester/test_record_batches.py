"""A batch that aiokafka cannot read is one dead letter, and what follows it is read."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords import default_records as fast_default_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.ingester.record_batches import (
    MemoryShort,
    Unreadable,
    accept_unreadable_records,
    find_fault,
)
from tests.odd_batch import (
    CODECS,
    OddBatch,
    add_junk,
    make_odd_name,
    update_length,
)

# Behind the head of a batch.
RECORDS = 61
ODD = (make_odd_name(b"a\xff\xfe"), b"1")
READ_COMMITTED = 1


@pytest.fixture(autouse=True)
def tolerant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetcher as the ingester has it, put back after the test."""
    monkeypatch.setattr(fetcher, "MemoryRecords", fetcher.MemoryRecords)
    accept_unreadable_records()


def read_records(
    data: bytes, *, begin: int = 0, aborted: list[tuple[int, int]] | None = None
) -> Iterator[ConsumerRecord]:
    """Read the records as the fetcher does."""
    records = fetcher.MemoryRecords(data)
    assert records.size_in_bytes() == len(data)
    tp = TopicPartition("events", 0)
    limits = (begin, None, None, True, READ_COMMITTED)
    read: Iterator[ConsumerRecord] = fetcher.PartitionRecords(tp, records, aborted or [], *limits)
    return read


def make_batch(codec: str = "none", **transaction: Any) -> OddBatch:
    odd_batch = OddBatch(codec, **transaction)
    odd_batch.add(b"first" * 20, [("good", b"1")])
    odd_batch.add(b"second" * 20, [("good", None), ODD])
    odd_batch.add(b"third" * 20, [("gut-ä", b"3")])
    return odd_batch


def list_offsets(records: Iterable[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def test_a_batch_is_read_up_to_a_record_that_stands_for_the_rest() -> None:
    for codec in CODECS:
        odd = make_batch(codec).encode_batch(5)
        records = list(read_records(odd + make_batch("none").encode_batch(8), begin=5))
        assert list_offsets(records) == [5, 6, 8, 9], codec
        assert [bytes(record.value) for record in records[:2]] == [b"first" * 20, odd], codec
        fault = find_fault(records[1])
        assert fault is not None
        assert (fault.reason, find_fault(records[0])) == ("unreadable_record", None), codec
        assert "from offset 6 to 7 cannot be read" in fault.detail, codec
    # reading may begin behind the odd record
    both = make_batch().encode_batch(5) + make_batch().encode_batch(8)
    assert list_offsets(read_records(both, begin=7)) == [8, 9]
    aborted = make_batch("gzip", transactional=True, producer_id=9).encode_batch(0)
    data = aborted + make_batch(transactional=True, producer_id=10).encode_batch(3)
    assert list_offsets(read_records(data, aborted=[(9, 0)])) == [3, 4]


def test_a_batch_that_is_damaged_on_the_way_is_no_odd_one() -> None:
    whole = make_batch().encode_batch()
    with pytest.raises(CorruptRecordException):
        list(read_records(whole[:-1] + bytes([whole[-1] ^ 1])))
    # one that is cut short is left for the next fetch
    assert len(list(read_records(whole + make_batch().encode_batch(3)[:-5]))) == 2
    records = fetcher.MemoryRecords(whole[:-1])
    assert not records.has_next()
    assert records.next_batch() is None
    # a length that points beyond the bytes
    odd_batch = OddBatch()
    odd_batch.add(b"first" * 20)
    raw = odd_batch.encode_batch()
    length = raw.index(b"first") - 2  # a varint of two bytes: 100
    beyond = b"\xfe\xff\xff\xff\xff\xff\x0f"
    [record] = read_records(update_length(raw[:length] + beyond + raw[length + 2 :]))
    assert isinstance(record.value, Unreadable)


def test_a_batch_with_bytes_behind_its_data_is_one_record() -> None:
    for codec in ("gzip", "lz4", "zstd"):
        odd = add_junk(make_batch(codec).encode_batch(3))
        data = make_batch().encode_batch(0) + odd + make_batch().encode_batch(6)
        records = list(read_records(data))
        assert list_offsets(records) == [0, 1, 3, 6, 7], codec
        assert bytes(records[2].value) == odd, codec
    # behind its last record: all of them were read
    good = OddBatch()
    good.add(b"first" * 20)
    data = update_length(good.encode_batch(0) + b"junk") + make_batch().encode_batch(1)
    assert list_offsets(read_records(data)) == [0, 1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(CODECS)),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=9)), max_size=3),
)
def test_no_content_of_a_batch_stops_the_line(codec: str, changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(make_batch(codec).encode_batch(5))
    for at, change in changes:
        offset = RECORDS + at % (len(raw) - RECORDS)
        raw[offset : offset + len(change)] = change
    offsets = list_offsets(read_records(update_length(bytes(raw))))
    assert offsets == sorted(set(offsets))


def short_of_memory(_: bytes) -> bytes:
    raise MemoryShort("no room")


def out_of_memory(_: bytes) -> bytes:
    raise MemoryError


def test_lack_of_memory_does_not_make_a_batch_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_batch("zstd").encode_batch(0)
    for decode in (short_of_memory, out_of_memory):
        with monkeypatch.context() as short:
            short.setattr(fast_default_records, "zstd_decode", decode)
            with pytest.raises(MemoryShort):
                list(read_records(data))
        assert list_offsets(read_records(data)) == [0, 1]
