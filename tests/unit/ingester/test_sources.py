"""Which sources fail, by what was stored of each of late."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.ingester.failures import FAILS_AFTER, Backoff, Sources, Stopped, source_of
from tests.stopped_clock import CallableClock

PARTITION = PartitionId("default", "events", 0, 0)


def read(producer: str, model_id: str | None) -> ReadRecord:
    headers = [("producer", producer)] if producer else []
    record = Record(PARTITION, 0, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", headers)
    return ReadRecord(record, Rejection("not_json", "", model_id, None))


def note(sources: Sources, producer: str, model_id: str, outcome: Outcome, count: int = 1) -> float:
    """Note so many events of a source; return which share fails then."""
    sources.note([(read(producer, model_id), outcome)] * count)
    return sources.failing_share


def test_a_source_is_a_producer_and_a_model_as_far_as_they_are_known() -> None:
    assert source_of(read("p", "m")) == ("p", "m")
    assert source_of(read("", None)) == ("", "")
    waiting = MissingBlob("key", "m", "i")
    assert source_of(ReadRecord(read("p", None).record, waiting)) == ("p", "m")


def test_everything_fails_if_nothing_was_stored() -> None:
    sources = Sources(60)
    assert sources.failing_share == 1
    assert note(sources, "p", "m", Outcome.DEAD, 3) == 1


def test_a_source_fails_after_many_in_a_row() -> None:
    for outcome in (Outcome.DEAD, Outcome.PARKED):
        sources = Sources(60)
        note(sources, "p", "large", Outcome.STORED, 90)
        note(sources, "p", "small", Outcome.DUPLICATE, 10)
        assert note(sources, "p", "large", outcome, FAILS_AFTER - 1) == 0, outcome
        assert note(sources, "p", "large", outcome) == 0.9, outcome
        assert sources.worst == ("p", "large"), outcome
        assert note(sources, "p", "large", Outcome.STORED, 10) == 0, outcome


def test_invented_sources_weigh_nothing() -> None:
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


# Backoff: each piece of work clears only what it waited for itself.


def make_failing_work(times: int) -> Callable[[], Awaitable[str]]:
    """Return work that fails `times` times because the object store is unavailable."""
    failures = iter(range(times))

    async def work() -> str:
        if next(failures, None) is not None:
            raise ObjectStoreUnavailable("gone")
        return "done"

    return work


async def test_retries_until_the_server_is_back() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0)
    assert await backoff.retry(make_failing_work(3)) == "done"
    assert backoff.unavailable == {}


async def test_success_does_not_hide_other_waiting_work() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=300)
    waiting = asyncio.create_task(backoff.retry(make_failing_work(1)))
    await asyncio.sleep(0)
    assert "gone" in str(await backoff.find_reason("object store"))
    await backoff.retry(make_failing_work(0))
    assert list(backoff.unavailable) == ["object store"]
    waiting.cancel()


async def test_finished_work_does_not_hide_work_that_waits_for_the_same_server() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0)
    endless = asyncio.create_task(backoff.retry(make_failing_work(1_000_000)))
    await backoff.retry(make_failing_work(3))
    assert list(backoff.unavailable) == ["object store"]
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert backoff.unavailable == {}


async def test_unexpected_error_ends_the_wait() -> None:
    for unavailable in (make_failing_work(0), make_failing_work(1)):
        backoff = Backoff(asyncio.Event(), first_seconds=0)

        async def work(before: Callable[[], Awaitable[str]] = unavailable) -> None:
            await before()
            raise KeyError

        with pytest.raises(KeyError):
            await backoff.retry(work)
        assert backoff.unavailable == {}


async def test_raises_when_asked_to_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Stopped):
        await Backoff(stop, first_seconds=300).retry(make_failing_work(1))
