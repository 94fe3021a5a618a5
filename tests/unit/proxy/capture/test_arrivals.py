"""Messages that arrive through the socket, and when reading ends."""

import time
from datetime import UTC, datetime
from io import BytesIO

import pytest

from inference_store.proxy.capture import arrivals
from inference_store.proxy.capture.arrivals import Arrivals
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.frames import Reader, Writer
from inference_store.proxy.capture.shared_counters import CounterId, SharedCounters
from inference_store.proxy.capture.work import Work
from inference_store.proxy.rules import Rules
from tests.exchanges import CALL, exchange
from tests.stopped_clock import StoppedClock


@pytest.fixture
def counters() -> SharedCounters:
    return SharedCounters.new()


def make_arrivals(counters: SharedCounters, raw: bytes, *, grace_seconds: float = 60) -> Arrivals:
    counts = Counts("p", "p", datetime.now(UTC), counters.values)
    return Arrivals(Reader(BytesIO(raw)), counters, counts, grace_seconds=grace_seconds)


def make_frames(count: int) -> bytes:
    writer = Writer()
    exchanges = [writer.exchange(Work(exchange(), CALL, Rules(), "m"), 7) for _ in range(count)]
    return b"".join(b"".join(parts) for parts in exchanges)


def test_reads_everything_before_decoding(counters: SharedCounters) -> None:
    result = make_arrivals(counters, make_frames(3))
    result.read()
    assert counters.values[CounterId.RECEIVED] == 3
    assert [work is not None for work in (result.next() for _ in range(4))] == [True] * 3 + [False]


def test_has_a_grace_period_after_the_serving_process_died(
    counters: SharedCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_arrivals(counters, make_frames(1), grace_seconds=600)
    clock = StoppedClock()
    monkeypatch.setattr(arrivals, "time", clock)
    assert result.deadline is None
    result.read()
    assert result.were_cut_off
    assert result.deadline == clock.now + 600
    assert not result.is_late
    clock.now += 600
    assert result.is_late


def test_after_the_deadline_nothing_more_is_given_out(counters: SharedCounters) -> None:
    result = make_arrivals(counters, make_frames(2))
    counters.values[CounterId.DEADLINE] = time.monotonic_ns() - 1
    result.read()
    assert result.is_late
    assert not result.were_cut_off
    assert result.next() is None
