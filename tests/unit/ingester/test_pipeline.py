"""The pipeline cuts what was polled into batches."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from inference_store.index.accounting import PartitionId
from inference_store.index.sidecars import Sidecar
from inference_store.index.unsettled import Record
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Predictions
from inference_store.ingester.batch import AssignedPartition, ReadRecord, build_range
from inference_store.ingester.limit import Backoff
from inference_store.ingester.pipeline import MOST_SIDECARS, Pipeline
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings
from tests.builders import make_event
from tests.settings import make_settings

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


def make_record(offset: int) -> Record:
    return Record(PARTITION, offset, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", ())


async def measure_batches(sidecars: str, events: int, *, written_before: int = 20) -> list[int]:
    """Return how many events each batch of one range has, if each batch is written before the next
    one is read; check that none is left out."""
    stop: Any = asyncio.Event()
    reader: Any = Reading(sidecars == "on")
    settings = make_settings(IngesterSettings, ingester_sidecars=sidecars)
    waits: dict[str, Any] = {"backoff": Backoff(stop, first_seconds=1), "heartbeat": Heartbeat()}
    pipeline = Pipeline(settings, NOTHING, reader, NOTHING, limit=NOTHING, stop=stop, **waits)
    records = [make_record(offset) for offset in range(events)]
    offset_range = build_range(AssignedPartition(0), PARTITION, lo=0, lost=0, records=records)
    for _ in range(written_before):
        pipeline._sizer.grow()
    batches = []
    async for batch in pipeline._batches([offset_range]):
        batches.append(batch)
        pipeline._sizer.grow()
    parts = [part for batch in batches for part in batch.ranges]
    assert (parts[0].lo, parts[-1].hi) == (0, events)
    assert all(part.hi == following.lo for part, following in pairwise(parts))
    return [len(batch.reads) for batch in batches]


async def test_batch_has_a_bounded_number_of_sidecars() -> None:
    for events in (1, MOST_SIDECARS, MOST_SIDECARS + 1, 1000):
        full, rest = divmod(events, MOST_SIDECARS)
        expected = [MOST_SIDECARS] * full + ([rest] if rest else [])
        assert await measure_batches("on", events) == expected, events


async def test_without_sidecars_only_the_first_batches_are_smaller_than_their_poll() -> None:
    assert await measure_batches("off", 1000) == [1000]
    assert await measure_batches("off", 1000, written_before=0) == [8, 16, 32, 64, 128, 256, 496]
