"""What the consumer makes of record batches that aiokafka cannot read."""

from collections.abc import Callable, Iterator

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records
from aiokafka.record._crecords import default_records as fast_default_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.ingester.decompression import MemoryShort
from inference_store.ingester.headers import read_headers
from inference_store.ingester.record_batches import (
    Unreadable,
    accept_unreadable_records,
    find_fault,
)
from tests.odd_batch import CODECS, OddBatch, odd_name, with_checksum, with_junk, with_length

# Behind the head of a batch.
RECORDS = 61
ODD = (odd_name(b"a\xff\xfe"), b"1")
READ_COMMITTED = 1


@pytest.fixture(autouse=True)
def tolerant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetcher as the ingester has it, put back after the test."""
    monkeypatch.setattr(fetcher, "MemoryRecords", fetcher.MemoryRecords)
    accept_unreadable_records()


def records_of(
    data: bytes, *, begin: int = 0, aborted: list[tuple[int, int]] | None = None
) -> Iterator[ConsumerRecord]:
    """As the fetcher reads them."""
    records = fetcher.MemoryRecords(data)
    assert records.size_in_bytes() == len(data)
    tp = TopicPartition("events", 0)
    found: Iterator[ConsumerRecord] = fetcher.PartitionRecords(
        tp, records, aborted or [], begin, None, None, True, READ_COMMITTED
    )
    return found


def batch(codec: str = "none", *, transactional: bool = False, producer_id: int = -1) -> OddBatch:
    made = OddBatch(codec, transactional=transactional, producer_id=producer_id)
    made.add(b"first" * 20, [("good", b"1")])
    made.add(b"second" * 20, [("good", None), ODD])
    made.add(b"third" * 20, [("gut-ä", b"3")])
    return made


@pytest.mark.parametrize("codec", CODECS)
def test_every_record_is_read_once_in_every_codec(codec: str) -> None:
    found = list(records_of(batch(codec).built(5) + batch("none").built(8), begin=5))
    assert [record.offset for record in found] == [5, 6, 7, 8, 9, 10]
    assert [record.value[:5] for record in found] == [b"first", b"secon", b"third"] * 2
    assert [find_fault(record) is None for record in found] == [True, False, True] * 2
    assert found[2].headers == (("gut-ä", b"3"),)
    assert read_headers(found[1].headers) == (("good", ""), ("a\\xff\\xfe", "1"))


def test_reading_may_begin_behind_the_odd_record() -> None:
    assert [record.offset for record in records_of(batch().built(5), begin=7)] == [7]


def test_odd_records_of_aborted_transactions_are_not_given() -> None:
    aborted = batch("gzip", transactional=True, producer_id=9).built(0)
    data = aborted + batch(transactional=True, producer_id=10).built(3)
    found = list(records_of(data, aborted=[(9, 0)]))
    assert [record.offset for record in found] == [3, 4, 5]


def test_a_batch_that_was_damaged_on_the_way_is_still_refused() -> None:
    damaged = bytearray(batch().built())
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordException):
        list(records_of(bytes(damaged)))


def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch() -> None:
    whole = batch().built()
    assert len(list(records_of(whole + batch().built(3)[:-5]))) == 3
    records = fetcher.MemoryRecords(whole[:-1])
    assert not records.has_next()
    assert records.next_batch() is None


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_what_cannot_be_read_at_all_is_given_as_it_is(codec: str) -> None:
    odd = with_junk(batch(codec).built(3))
    found = list(records_of(batch().built(0) + odd + batch().built(6)))
    assert [record.offset for record in found] == list(range(9))
    faults = [find_fault(record) for record in found]
    assert [fault.reason if fault else "" for fault in faults[3:6]] == ["unreadable_record"] * 3
    assert faults[:3] == faults[6:]
    assert [bytes(record.value) for record in found[3:6]] == [odd, b"", b""]
    assert "offset 3" in faults[5].detail if faults[5] else False


def test_records_before_the_one_that_cannot_be_read_are_kept() -> None:
    made = OddBatch()
    made.add(b"first")
    made.add(b"second")
    made.add(b"third")
    raw = bytearray(made.built())
    # An attribute that is no attribute, in the second record: Kafka looks at none of them.
    second = raw.index(b"second") - 5
    assert raw[second] == 0
    raw[second] = 0xFF
    found = list(records_of(with_checksum(raw)))
    assert [type(record.value) for record in found] == [bytes, Unreadable, Unreadable]


def test_a_length_far_beyond_the_batch_is_not_followed() -> None:
    """The compiled reader of aiokafka would read there, and the process die by SIGSEGV."""
    made = OddBatch()
    made.add(b"first" * 20)
    raw = made.built()
    length = raw.index(b"first") - 2  # a varint of two bytes: 100
    beyond = b"\xfe\xff\xff\xff\xff\xff\x0f"
    [record] = records_of(with_length(raw[:length] + beyond + raw[length + 2 :]))
    assert isinstance(record.value, Unreadable)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(CODECS)),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=9)), max_size=3),
)
def test_no_content_of_a_batch_stops_the_line(codec: str, changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(batch(codec).built(5))
    for at, change in changes:
        place = RECORDS + at % (len(raw) - RECORDS)
        raw[place : place + len(change)] = change
    offsets = [record.offset for record in records_of(with_length(bytes(raw)))]
    assert offsets == sorted(set(offsets))


def short_of_memory(_: bytes) -> bytes:
    raise MemoryShort("no room")


def out_of_memory(_: bytes) -> bytes:
    raise MemoryError


@pytest.mark.parametrize("decode", [short_of_memory, out_of_memory])
@pytest.mark.parametrize("tolerant_too", [True, False])
def test_a_batch_that_there_is_no_memory_for_is_no_unreadable_one(
    monkeypatch: pytest.MonkeyPatch, decode: Callable[[bytes], bytes], tolerant_too: bool
) -> None:
    """Whether the strict reader lacks it, or the tolerant one after an odd record."""
    data = batch("zstd").built(0)
    with monkeypatch.context() as short:
        if tolerant_too:
            short.setattr(fast_default_records, "zstd_decode", decode)
        short.setattr(default_records, "zstd_decode", decode)
        with pytest.raises(MemoryShort):
            list(records_of(data))
    assert [record.offset for record in records_of(data)] == [0, 1, 2]
