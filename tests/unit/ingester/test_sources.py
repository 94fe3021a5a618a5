"""Which sources fail, by what was stored of each of late."""

from datetime import UTC, datetime

from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.unsettled import Record, Rejection
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.ingester.limit import FAILS_AFTER, Sources, source_of
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
