"""The pipeline cuts what was polled into batches; which sources fail."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.sidecars import Sidecar
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Predictions
from inference_store.ingester.batch import (
    AssignedPartition,
    MissingBlob,
    ReadRecord,
    build_range,
    read_headers,
    read_sequence,
)
from inference_store.ingester.failures import FAILS_AFTER, Sources, make_backoff, source_of
from inference_store.ingester.pipeline import MOST_SIDECARS, BatchBuilder, Pipeline
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings
from tests.builders import make_event
from tests.settings import make_settings
from tests.stopped_clock import CallableClock

_TP = TopicPartition("events", 0)
PARTITION = PartitionId("default", "events", 0, 0)
NOTHING: Any = None


class Reading:
    """Reads every record as an inference, with a sidecar if that is asked for."""

    def __init__(self, sidecars: bool) -> None:
        self._sidecar = Sidecar(StorageKey("bucket", "sidecar"), b"{}") if sidecars else None

    async def read(self, records: Sequence[Record]) -> list[ReadRecord]:
        metadata, none = read_metadata(b"[]"), Predictions((), (), None)
        event = make_event()
        item = Indexable(event, NOTHING, metadata, none, sidecar=self._sidecar)
        return [ReadRecord(record, item) for record in records]


def make_record(offset: int, *headers: tuple[str, str], partition: int = 0) -> Record:
    partition_id = PARTITION._replace(partition=partition)
    return Record(partition_id, offset, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", headers)


async def measure_batches(sidecars: str, events: int, *, written_before: int = 20) -> list[int]:
    """Return how many events each batch of one range has, if each batch is written before the next
    one is read; check that none is left out."""
    stop: Any = asyncio.Event()
    reader: Any = Reading(sidecars == "on")
    settings = make_settings(IngesterSettings, ingester_sidecars=sidecars)
    waits: dict[str, Any] = {"backoff": make_backoff(stop), "heartbeat": Heartbeat()}
    pipeline = Pipeline(settings, NOTHING, reader, NOTHING, limit=NOTHING, stop=stop, **waits)
    records = [make_record(offset) for offset in range(events)]
    offset_range = build_range(AssignedPartition(_TP), PARTITION, lo=0, lost=0, records=records)
    pipeline._most_events *= 2**written_before
    batches = []
    async for batch in pipeline._batches([offset_range]):
        batches.append(batch)
        pipeline._most_events *= 2
    parts = [part for batch in batches for part in batch.ranges]
    assert (parts[0].lo, parts[-1].hi) == (0, events)
    assert all(part.hi == following.lo for part, following in pairwise(parts))
    return [len(batch.reads) for batch in batches]


async def test_batches_are_bounded_by_sidecars_or_begin_small() -> None:
    for events in (1, MOST_SIDECARS, MOST_SIDECARS + 1, 1000):
        full, rest = divmod(events, MOST_SIDECARS)
        expected = [MOST_SIDECARS] * full + ([rest] if rest else [])
        assert await measure_batches("on", events) == expected, events
    assert await measure_batches("off", 1000) == [1000]
    assert await measure_batches("off", 1000, written_before=0) == [8, 16, 32, 64, 128, 256, 496]


offsets = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


@given(offsets, st.integers(0, 10))
def test_range_accounts_for_every_offset(present: list[int], before: int) -> None:
    lo = max(present[0] - before, 0)
    records = [make_record(offset) for offset in present]
    built = build_range(AssignedPartition(_TP), PARTITION, lo=lo, lost=0, records=records)
    assert built.hi == present[-1] + 1
    assert built.lost + built.not_delivered + len(built.records) == built.hi - built.lo


@given(st.lists(offsets, min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 4))
def test_batches_cover_the_same_offsets_without_a_gap(
    partitions: list[list[int]], most_rows: int, slice: int
) -> None:
    ranges = [
        build_range(
            AssignedPartition(TopicPartition("events", number)),
            PARTITION._replace(partition=number),
            lo=max(offsets[0] - 2, 0),
            lost=min(offsets[0], 1),
            records=[make_record(offset, partition=number) for offset in offsets],
        )
        for number, offsets in enumerate(partitions)
    ]
    batches, builder = [], BatchBuilder()
    for offset_range in ranges:
        builder.begin(offset_range)
        for start in range(0, len(offset_range.records), slice):
            records = offset_range.records[start : start + slice]
            rejection = Rejection("not_json", "")
            builder.add(records, [ReadRecord(record, rejection) for record in records])
            if builder.rows >= most_rows:
                batches.append(builder.build())
    if builder.reads:
        batches.append(builder.build())
    for offset_range in ranges:
        everywhere = [part for batch in batches for part in batch.ranges]
        parts = [part for part in everywhere if part.partition_id == offset_range.partition_id]
        assert (parts[0].lo, parts[-1].hi) == (offset_range.lo, offset_range.hi)
        assert all(part.hi == following.lo for part, following in pairwise(parts))
        assert sum(part.lost for part in parts) == offset_range.lost
        assert sum(part.not_delivered for part in parts) == offset_range.not_delivered
    everything = [record for offset_range in ranges for record in offset_range.records]
    assert [read.record for batch in batches for read in batch.reads] == everything
    assert all(len(batch.reads) < most_rows + slice for batch in batches)


def test_sequences_headers_and_passed_offsets_are_kept() -> None:
    records = [
        make_record(0, ("producer", "p"), ("sequence", "3")),
        make_record(1),
    ]
    built = build_range(AssignedPartition(_TP), PARTITION, lo=0, lost=0, records=records)
    assert built.sequences == {"p": [3]}
    for headers in (
        (),
        (("producer", "p"),),
        (("producer", "p"), ("sequence", "٣")),
        (("producer", "p"), ("sequence", "9" * 19)),
        (("producer", "p" * 257), ("sequence", "1")),
    ):
        assert read_sequence(headers) is None, headers
    read = read_headers([("a\0", b"\xff\0"), ("b", None)])
    assert read == (("a\ufffd", "\ufffd\ufffd"), ("b", ""))
    assert len(read_headers([("a", b"1")] * 100)) == 32
    offset_range = build_range(AssignedPartition(_TP), PARTITION, lo=3, hi=7, lost=1)
    builder = BatchBuilder()
    assert not builder.has_begun
    builder.begin(offset_range)
    assert builder.has_begun
    [part] = builder.build().ranges
    assert (part.lo, part.hi, part.lost, part.not_delivered, part.last) == (3, 7, 1, 3, None)


def read(producer: str, model_id: str | None) -> ReadRecord:
    headers = [("producer", producer)] if producer else []
    return ReadRecord(make_record(0, *headers), Rejection("not_json", "", model_id, None))


def note(sources: Sources, producer: str, model_id: str, outcome: Outcome, count: int = 1) -> float:
    """Note so many events of a source; return which share fails then."""
    sources.note([(read(producer, model_id), outcome)] * count)
    return sources.failing_share


def test_a_source_fails_after_many_in_a_row() -> None:
    assert source_of(read("p", "m")) == ("p", "m")
    assert source_of(read("", None)) == ("", "")
    waiting = MissingBlob("key", "m", "i")
    assert source_of(ReadRecord(read("p", None).record, waiting)) == ("p", "m")
    sources = Sources(60)
    assert sources.failing_share == 1
    assert note(sources, "p", "m", Outcome.DEAD, 3) == 1
    for outcome in (Outcome.DEAD, Outcome.PARKED):
        sources = Sources(60)
        note(sources, "p", "large", Outcome.STORED, 90)
        note(sources, "p", "small", Outcome.DUPLICATE, 10)
        assert note(sources, "p", "large", outcome, FAILS_AFTER - 1) == 0, outcome
        assert note(sources, "p", "large", outcome) == 0.9, outcome
        assert sources.worst == ("p", "large"), outcome
        assert note(sources, "p", "large", Outcome.STORED, 10) == 0, outcome
    sources = Sources(60)
    note(sources, "p", "m", Outcome.STORED)
    for number in range(100):
        assert note(sources, f"p{number}", "m", Outcome.DEAD, 20) == 0
    # a copy is tried on without the original
    tried = sources.copied()
    assert note(tried, "p", "m", Outcome.DEAD, 20) == 1
    assert sources.failing_share == 0


def test_events_stored_long_ago_do_not_count() -> None:
    clock = CallableClock()
    sources = Sources(60, clock)
    note(sources, "p", "old", Outcome.STORED, 90)
    clock.now += 61
    note(sources, "p", "new", Outcome.STORED, 10)
    assert note(sources, "p", "new", Outcome.DEAD, 20) == 0.1
    clock.now += 60
    sources.note(())
    assert sources.failing_share == 1
    clock.now += 120
    assert note(sources, "p", "old", Outcome.STORED) == 0, "older than two windows"
