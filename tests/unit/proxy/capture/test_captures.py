"""The budget, the queue, the books: with an S3 and a Kafka that the tests control."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from inference_store.inference.producer_reports import ProducerReport
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import __main__ as capturing
from inference_store.proxy.capture import process
from inference_store.proxy.capture.__main__ import UPLOAD_THREADS
from inference_store.proxy.capture.captures import MOST_CHUNKS, OVERHEAD, PART, Captures, Queue
from inference_store.proxy.capture.counts import Budget, CounterId, Counts, read_values
from inference_store.proxy.capture.spool import lock_dead_producers
from inference_store.proxy.configuration import Rules, Sampling
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.routing import Route
from tests.exchanges import CALL, PROTOCOL, exchange, request_body
from tests.polling import until
from tests.settings import make_settings

from .recording import UPSTREAM, Bucket, Log, hand_over, hand_over_one, make_start, wait_until_true

PATIENT = 300.0
"""Seconds in which a slow machine ends its work, too."""
SMALL = {"proxy_capture_bytes": 200_000, "proxy_body_bytes": 100_000}


def broken(*_: Any) -> Any:
    raise RuntimeError("a defect")


DEFECT = replace(PROTOCOL, name="broken", read=broken)
UNLUCKY = Rules(model="unlucky", sampling=Sampling(share=0))
ROUTE = Route(UPSTREAM, CALL)


@asynccontextmanager
async def run_captures(log: Log, **changes: Any) -> AsyncIterator[Captures]:
    quick: dict[str, Any] = {"proxy_report_seconds": 0.05}
    quick |= {"proxy_upstream": "http://up"}
    settings = make_settings(ProxySettings, **(quick | changes))
    protocols = {protocol.name: protocol for protocol in (PROTOCOL, DEFECT)}
    captures = Captures(settings, [UNLUCKY], start=make_start(log.bucket, log, protocols))
    await captures.start()
    try:
        yield captures
    finally:
        await captures.stop(PATIENT)


async def wait_for_report(log: Log, enough: Callable[[ProducerReport], bool]) -> ProducerReport:
    """Wait until the newest report is enough, and return it."""
    await wait_until_true(lambda: bool(log.reports) and enough(log.reports[-1]))
    assert log.reports[-1].closes
    return log.reports[-1]


async def test_every_exchange_is_published_once_under_its_own_sequence() -> None:
    """A batch is one exchange of several events; what is sampled out leaves no gap."""
    log = Log()
    async with run_captures(log) as captures:
        hand_over(captures, 10, model=UNLUCKY.model)
        hand_over(captures, 60)
        assert hand_over_one(captures, exchange(request_body(b"one", b"two"), b"{}"))
        await wait_for_report(log, lambda report: report.published == 61)
        assert captures.budget.held == 0
    numbers = Counter(sequence for _, sequence, _ in log.events)
    assert numbers == Counter(range(1, 62)) + Counter([61])
    assert [event["batch_index"] for _, number, event in log.events if number == 61] == [0, 1]
    assert {producer for producer, _, _ in log.events} == {captures.producer}
    last = log.reports[-1]
    assert last.final
    counts = (last.seen, last.sampled_out, last.published, last.events, last.highest_sequence)
    assert counts == (71, 10, 61, 62, 61)
    reports = [report.number for report in log.reports]
    assert reports == sorted(set(reports))
    assert log.bucket.most_at_once <= UPLOAD_THREADS


async def test_does_not_count_calls_that_are_not_captured() -> None:
    log = Log()
    async with run_captures(log) as captures:
        reservation = captures.begin(100)
        assert reservation is not None
        assert captures.budget.held == 100 + OVERHEAD
        reservation.pass_through()
        reservation.finish(exchange(), ROUTE)
        forgotten = captures.begin(100)
        del reservation, forgotten
        assert captures.budget.held == 0
        report = await wait_for_report(log, lambda _: True)
    assert report.seen == 0
    assert log.events == []


@pytest.mark.parametrize("away", ["s3", "kafka"])
async def test_while_a_server_is_away_the_budget_holds_and_drops_are_counted(away: str) -> None:
    log = Log()
    log.is_away, log.bucket.is_away = away == "kafka", away == "s3"
    async with run_captures(log, **SMALL) as captures:
        accepted = 0
        for _ in range(40):
            accepted += hand_over(captures, 10)
            # what an exchange becomes may be a little more than it was
            assert captures.budget.held < 300_000
            await asyncio.sleep(0)
        assert 5 < accepted < 100
        waits = captures.waits["object store" if away == "s3" else "kafka"]
        await until(waits, lambda why: why is not None and "away" in why)
        log.is_away = log.bucket.is_away = False
        report = await wait_for_report(log, lambda report: report.published == accepted)
        assert report.dropped == {"no_budget": 400 - accepted}
        assert captures.budget.held == 0
        assert hand_over(captures) == 1
        await wait_for_report(log, lambda report: report.published == accepted + 1)
    assert log.reports[-1].highest_sequence == 401
    assert await captures.waits["kafka"]() is None


async def test_an_exchange_that_grows_waits_in_its_original_form() -> None:
    log = Log()
    log.bucket.is_away = True
    async with run_captures(log, **SMALL) as captures:
        # both an object and a part of the event
        answer = orjson.dumps({"outputs": [{"data": "x" * 14_000}]})
        accepted = hand_over(captures, 100, answer=answer)
        assert 20 < accepted < 100
        await wait_until_true(lambda: captures.budget.held > 200_000)
        waits = captures.waits["object store"]
        await until(waits, lambda why: why is not None)
        assert captures.budget.held < 250_000
        log.bucket.is_away = False
        await wait_for_report(log, lambda report: report.published == accepted)
        assert captures.budget.held == 0


async def test_bodies_over_a_cap_and_too_many_chunks_are_not_kept() -> None:
    log = Log()
    async with run_captures(log, proxy_body_bytes=1000) as captures:
        reservation = captures.begin(1001)
        assert reservation is not None
        assert reservation.refused
        assert reservation.reserve_more(1000)
        assert not reservation.reserve_more(1)
        reservation.pass_through()
        reservation = captures.begin(0)
        assert reservation is not None
        assert not reservation.refused
        assert [reservation.reserve_more(0) for _ in range(MOST_CHUNKS)] == [True] * MOST_CHUNKS
        assert not reservation.reserve_more(0)
        sample = exchange()
        sample.response = Body(parts=(b"{",), size=5000, whole=False)
        reservation.finish(sample, ROUTE)
        await wait_for_report(log, lambda report: report.published == 1)
    ((_, _, event),) = log.events
    assert event["inference_storage_key"] == ""


async def test_counts_exchanges_that_cannot_become_events() -> None:
    log = Log()
    async with run_captures(log, **SMALL) as captures:
        hand_over_one(captures, exchange(), Call(DEFECT, "infer"))
        # no room for the head of its answer
        assert hand_over_one(captures, exchange(response_headers=[("x", "y" * 200_000)]))
        hand_over(captures)
        report = await wait_for_report(log, lambda report: report.published == 1)
        assert captures.budget.held == 0
    assert report.dropped == {"unreadable": 1, "no_budget": 1}
    assert report.highest_sequence == 3


async def test_counts_events_that_kafka_refuses() -> None:
    log = Log(refuses=True)
    async with run_captures(log) as captures:
        hand_over(captures, 2)
        report = await wait_for_report(log, lambda report: report.dropped.get("refused") == 2)
        assert captures.budget.held == 0
    assert (report.published, report.queued) == (0, 0)


async def test_at_its_end_it_drains_and_refuses_new_ones() -> None:
    log = Log()
    async with run_captures(log) as captures:
        hand_over(captures, 100)
        assert await captures.stop(PATIENT) == 0
        assert captures.begin(1) is None
    assert len(log.events) == 100
    assert log.reports[-1].final


async def test_reports_captures_left_in_memory_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # all of the grace is the final report's: there is no time to wait for the object store
    monkeypatch.setattr(capturing, "_LAST_REPORT_SECONDS", PATIENT)
    monkeypatch.setattr(capturing, "_REPORT_SHARE", 1.0)
    log = Log(bucket=Bucket(is_away=True))
    async with run_captures(log, proxy_grace_seconds=PATIENT) as captures:
        hand_over(captures, 30)
        assert await captures.stop(PATIENT) == 30
    assert log.reports[-1].dropped == {"left": 30}
    assert log.reports[-1].closes
    assert log.events == []


@pytest.mark.parametrize("mode", ["all", "overflow"])
async def test_a_spool_takes_what_is_left_and_the_next_one_publishes_it(
    mode: str, tmp_path: Path
) -> None:
    spool = {"proxy_spool": mode, "proxy_spool_directory": tmp_path}
    log = Log(bucket=Bucket(is_away=True))
    async with run_captures(log, **spool) as first:
        hand_over(first, 30)
        assert await first.stop(PATIENT) == 30
    last = log.reports[-1]
    assert (last.queued, last.spooled, last.final, last.dropped) == (30, 30, True, {})
    log.bucket.is_away = False
    async with run_captures(log, **spool) as second:
        hand_over(second, 3)
        await wait_until_alone(tmp_path, second.producer)
        await wait_for_report(log, lambda report: report.published == 3)
    counts = Counter(producer for producer, _, _ in log.events)
    assert counts == {first.producer: 30, second.producer: 3}
    of_first = sorted(number for producer, number, _ in log.events if producer == first.producer)
    assert of_first == list(range(1, 31))
    _, heirs = [r for r in log.reports if r.producer == first.producer and r.final]
    assert (heirs.reporter, heirs.seen, heirs.published) == (first.producer, 30, 30)
    assert heirs.closes
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


async def wait_until_alone(root: Path, producer: str) -> None:
    """Wait until no other producer has a folder in the spool."""

    async def list_names() -> set[str]:
        return set(await asyncio.to_thread(os.listdir, root))

    await until(list_names, lambda names: names <= {producer, f"{producer}.lock"})


async def test_an_overflow_goes_to_disk_and_none_is_dropped(tmp_path: Path) -> None:
    log = Log(bucket=Bucket(is_away=True))
    spool = {"proxy_spool": "overflow", "proxy_spool_directory": tmp_path}
    async with run_captures(log, **SMALL, **spool) as captures:
        for accepted in range(5, 201, 5):
            assert hand_over(captures, 5) == 5, accepted
            # Memory has room for 25, and half of them are to stay there.
            least = accepted - 17
            await wait_for_report(log, lambda report: report.spooled >= least)  # noqa: B023
        assert log.reports[-1].dropped == {}
        log.bucket.is_away = False
        await wait_for_report(log, lambda report: report.published == 200)
    assert sorted(number for _, number, _ in log.events) == list(range(1, 201))


async def test_a_last_report_that_kafka_missed_comes_with_the_next_one(tmp_path: Path) -> None:
    spool = {"proxy_spool": "overflow", "proxy_spool_directory": tmp_path}
    log = Log(is_away=True)
    async with run_captures(log, **spool) as first:
        hand_over(first, 4)
        assert await first.stop(PATIENT) == 4
    assert log.reports == []
    log.is_away = False
    async with run_captures(log, **spool) as second:
        await wait_until_alone(tmp_path, second.producer)
    last = [report for report in log.reports if report.producer == first.producer][-1]
    assert (last.final, last.seen, last.published, last.queued) == (True, 4, 4, 0)
    assert len(log.events) == 4


def make_queue(seconds: float, *, is_away: bool = False) -> tuple[Queue, Budget]:
    """Make a queue before captures that hold all of a budget of 100 kB."""
    values = read_values()
    values[CounterId.IS_AWAY] = is_away
    budget = Budget(values, 100_000)
    assert budget.take(100_000)
    budget.hand(100_000)
    queue = Queue(budget, seconds)
    assert queue.is_needed
    return queue, budget


async def test_calls_wait_in_turn_while_captures_are_behind() -> None:
    queue, budget = make_queue(PATIENT)
    gone, *calls = [asyncio.create_task(queue.wait(size)) for size in (10**9, 50_000, 50_000)]
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not any(call.done() for call in calls)
    budget.free(30_000)
    await asyncio.gather(*calls)
    assert not queue.is_needed


async def test_no_call_waits_for_a_server_or_long() -> None:
    for seconds, is_away in ((PATIENT, True), (0.0, False), (0.01, False)):
        queue, _ = make_queue(seconds, is_away=is_away)
        await queue.wait(30)
    queue, _ = make_queue(PATIENT)
    queue._freed, queue._moved = 0, asyncio.get_running_loop().time() - 60  # nothing moves
    await queue.wait(30)


async def test_heads_and_parts_count_against_the_budget() -> None:
    """What is small has room in what every exchange is counted with."""
    async with run_captures(Log(), proxy_body_bytes=1000) as captures:
        for head, held in ((OVERHEAD - 100, OVERHEAD + 10), (50_000, 50_010)):
            reservation = captures.begin(10, head)
            assert reservation is not None
            assert captures.budget.held == held, head
            reservation.pass_through()
        reservation = captures.begin(0)
        assert reservation is not None
        assert all(reservation.reserve_more(1) for _ in range(10))
        assert captures.budget.held == OVERHEAD + 10 * (1 + PART)
        reservation.pass_through()
        assert captures.budget.held == 0


class Silent:
    """A Kafka that never answers, and cannot be left, either."""

    def __init__(self) -> None:
        self.was_asked = threading.Event()

    async def publish(self, *_: object, **__: object) -> Any:
        self.was_asked.set()
        await asyncio.Event().wait()

    report = close = publish


@pytest.mark.parametrize("spool", ["off", "overflow"])
async def test_the_end_is_within_the_grace_while_kafka_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: Any
) -> None:
    monkeypatch.setattr(process, "_FINAL_REPORT_SECONDS", 300.0)  # the process ends by itself
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_report_seconds=300,
        proxy_spool=spool,
        proxy_spool_directory=tmp_path,
    )
    kafka = Silent()
    captures = Captures(settings, start=make_start(Bucket(), kafka, {PROTOCOL.name: PROTOCOL}))
    await captures.start()
    assert hand_over(captures) == 1
    await wait_until_true(kafka.was_asked.is_set)
    assert await captures.stop(0) == 1
    # what it would have said is there for whoever comes next
    folders = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    assert len(folders) == 2 * (spool == "overflow")
    for producer, lock in lock_dead_producers(tmp_path) if folders else ():
        report = Counts.stored(producer, lock).report()
        assert (report.seen, report.spooled) == (1, 1)
        os.close(lock)
