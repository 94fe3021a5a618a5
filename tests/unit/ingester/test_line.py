"""How what was polled is cut into batches."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from inference_store.index.books import Place
from inference_store.index.records import Record
from inference_store.index.sidecars import Sidecar
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Predictions
from inference_store.ingester.backoff import Backoff
from inference_store.ingester.batch import Assigned, Read
from inference_store.ingester.line import Line
from inference_store.ingester.shares import MOST_SIDECARS, share_of
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import IngesterSettings
from tests.builders import make_event
from tests.settings import make_settings

PLACE = Place("default", "events", 0, 0)
NOTHING: Any = None


class Reading:
    """Every record is an inference, with a sidecar where it is asked for."""

    def __init__(self, sidecars: bool) -> None:
        self._sidecar = Sidecar(StorageKey("bucket", "sidecar"), b"{}") if sidecars else None

    async def read(self, records: Sequence[Record]) -> list[Read]:
        metadata, none = read_metadata(b"[]"), Predictions((), (), None)
        event = make_event()
        item = Indexable(event, NOTHING, metadata, none, sidecar=self._sidecar)
        return [Read(record, item) for record in records]


def record(offset: int) -> Record:
    return Record(PLACE, offset, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", ())


async def sizes(sidecars: str, events: int, *, written_before: int = 20) -> list[int]:
    """How many events each batch has, of one share, if each is written before the next is read;
    none is left out."""
    stop: Any = asyncio.Event()
    reader: Any = Reading(sidecars == "on")
    settings = make_settings(IngesterSettings, ingester_sidecars=sidecars)
    line = Line(
        settings,
        NOTHING,
        reader,
        NOTHING,
        limit=NOTHING,
        backoff=Backoff(stop, first_seconds=1),
        heartbeat=Heartbeat(),
        stop=stop,
    )
    records = [record(offset) for offset in range(events)]
    share = share_of(Assigned(0), PLACE, lo=0, lost=0, records=records)
    for _ in range(written_before):
        line._pace.grow()
    batches = []
    async for batch in line._batches([share]):
        batches.append(batch)
        line._pace.grow()
    parts = [part for batch in batches for part in batch.shares]
    assert (parts[0].lo, parts[-1].hi) == (0, events)
    assert all(one.hi == other.lo for one, other in pairwise(parts))
    return [len(batch.reads) for batch in batches]


@pytest.mark.parametrize("events", [1, MOST_SIDECARS, MOST_SIDECARS + 1, 1000])
async def test_a_batch_has_so_many_sidecars_and_no_more(events: int) -> None:
    full, rest = divmod(events, MOST_SIDECARS)
    assert await sizes("on", events) == [MOST_SIDECARS] * full + [rest] * bool(rest)


async def test_without_sidecars_a_batch_is_as_large_as_its_poll() -> None:
    assert await sizes("off", 1000) == [1000]


async def test_the_first_batches_after_a_start_are_small() -> None:
    found = await sizes("off", 1000, written_before=0)
    assert found == [8, 16, 32, 64, 128, 256, 496]
