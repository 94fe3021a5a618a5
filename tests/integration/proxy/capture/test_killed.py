"""Captures are published whichever process is killed, and nothing in a spool is lost."""

import asyncio
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OutOfOrderSequenceNumber

from inference_store.inference.producer_reports import ProducerReport
from inference_store.proxy.capture.publisher import Publisher
from inference_store.proxy.capture.segments import read_segment
from tests.polling import until
from tests.servers.environment import service_environment
from tests.servers.fixtures import MakeTopic
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.warm.process import start_module

from . import servers
from .servers import PublishedEvent, read_events, read_reports

NOBODY = "http://127.0.0.1:9"


class CapturingProcess:
    """The process of `capturing.py`."""

    def __init__(
        self, environment: dict[str, str], log: Path, *, most: float = math.inf, waiting: int = 500
    ) -> None:
        """`most`: exchanges that it captures itself; `waiting`: those of them that wait at once."""
        self.log = log
        module = "tests.integration.proxy.capture.capturing"
        numbers = str(most), str(waiting)
        self.process = start_module(module, *numbers, log=log, environment=environment)
        self.kill = self.process.kill

    async def find_producer(self) -> str:
        """Return the id of its producer: the first line that is not a log."""

        async def ask() -> list[str]:
            text = await asyncio.to_thread(self.log.read_text)
            return [line for line in text.splitlines() if len(line) == 36]

        return (await until(ask, bool))[0]

    def stop(self) -> None:
        self.process.stop(seconds=300)

    def kill_serving(self) -> Sequence[psutil.Process]:
        """Kill (-9) only the process that serves; return its children, which continue."""
        below = [psutil.Process(pid) for pid in self.process.pids() if pid != self.process.pid]
        psutil.Process(self.process.pid).kill()
        self.process.wait(300)
        return below

    async def _list_capture(self) -> list[int]:
        return [pid for pid in self.process.pids() if pid != self.process.pid]

    async def kill_capture(self) -> int:
        """Kill (-9) only the capture process, once there is one; return its pid."""
        (pid,) = await until(self._list_capture, lambda pids: len(pids) == 1)
        psutil.Process(pid).kill()
        await until(self._list_capture, lambda pids: pid not in pids)
        return pid

    async def freeze_capture(self) -> None:
        """Stop (SIGSTOP) only the capture process, once there is one."""
        (pid,) = await until(self._list_capture, lambda pids: len(pids) == 1)
        psutil.Process(pid).suspend()


class Capturing:
    """Starts such processes, and reads what came of them."""

    def __init__(self, kafka: Kafka, environment: dict[str, str], folder: Path) -> None:
        self._kafka, self._environment, self._folder = kafka, environment, folder
        self.spool = folder / "spool"
        self.started: list[CapturingProcess] = []

    def start(
        self, *, most: float = math.inf, waiting: int = 500, **changes: str
    ) -> CapturingProcess:
        """Start one; `changes`: settings without the prefix."""
        settings = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        log = self._folder / f"{len(self.started)}.log"
        process = CapturingProcess(self._environment | settings, log, most=most, waiting=waiting)
        self.started.append(process)
        return process

    async def read_events(self, producer: str) -> list[PublishedEvent]:
        events = await read_events(self._kafka, self._environment["INFERENCE_STORE_KAFKA_TOPIC"])
        return [event for event in events if event.producer == producer]

    async def wait_for_more_events(self, producer: str) -> None:
        async def count() -> int:
            return len(await self.read_events(producer))

        least = await count() + 20
        await until(count, lambda number: number > least)

    async def read_reports(self, producer: str) -> list[ProducerReport]:
        topic = self._environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"]
        reports = await read_reports(self._kafka, topic)
        return [report for report in reports if report.producer == producer]

    async def wait_for_final_report(self, producer: str) -> ProducerReport:
        """Wait for the final report about a producer; its books close."""

        async def ask() -> list[ProducerReport]:
            return [report for report in await self.read_reports(producer) if report.final]

        report = (await until(ask, bool))[-1]
        assert report.closes
        return report

    async def list_spool(self, producer: str = "") -> Sequence[str]:
        """Return the names in the spool, or in the folder of a producer."""
        return await asyncio.to_thread(os.listdir, self.spool / producer)

    async def find_spooled(self, producer: str) -> set[int]:
        """Return the numbers of the whole exchanges in the spool of a producer."""

        def find() -> set[int]:
            files = (self.spool / producer).glob("*.tar")
            return set().union(*(read_segment(file.read_bytes()).sequences for file in files))

        return await asyncio.to_thread(find)


@pytest.fixture
def capturing(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: MakeTopic, tmp_path: Path
) -> Iterator[Capturing]:
    """A factory of processes that capture; they are killed in the end."""
    environment = service_environment(
        "",
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=topic(3),
        KAFKA_REPORTS_TOPIC=topic(1),
        PROXY_UPSTREAM="http://up",
        PROXY_SPOOL="all",
        PROXY_SPOOL_DIRECTORY=str(tmp_path / "spool"),
        PROXY_REPORT_SECONDS="0.3",
        PROXY_GRACE_SECONDS="120",
        S3_TIMEOUT_SECONDS="20",
        LOG_FORMAT="text",
    )
    processes = Capturing(kafka_server, environment, tmp_path)
    yield processes
    for process in processes.started:
        process.kill()


async def _drain_spool(capturing: Capturing, dead: str) -> ProducerReport:
    """Start another process, wait until it has drained the spool, end it, and return its report."""
    # Its own captures must be published within its grace period, even on a slow machine.
    heir = capturing.start(most=20)
    await heir.find_producer()
    await until(capturing.list_spool, lambda names: dead not in names, seconds=300)
    heir.stop()
    assert "left 0" in heir.log.read_text()
    assert await capturing.list_spool() == []
    report = (await capturing.read_reports(dead))[-1]
    assert report.reporter == dead
    # nobody knows what it saw last
    assert (report.queued, report.final) == (0, False)
    return report


async def test_killed_while_a_server_is_away_publishes_the_spool(capturing: Capturing) -> None:
    """Nothing is lost or doubled, and the id and the numbers are the old ones. Of a file that was
    cut the last exchange is gone."""
    first = capturing.start(S3_ENDPOINT=NOBODY)
    producer = await first.find_producer()
    await until(lambda: capturing.find_spooled(producer), lambda spooled: len(spooled) > 200)
    first.kill()
    before = await capturing.find_spooled(producer)
    assert before == set(range(1, len(before) + 1))
    victim = max((capturing.spool / producer).glob("*.tar"))
    victim.write_bytes(victim.read_bytes().rstrip(b"\0")[:-1])
    whole = await capturing.find_spooled(producer)
    assert len(before - whole) == 1
    assert await capturing.read_events(producer) == []
    report = await _drain_spool(capturing, producer)
    events = await capturing.read_events(producer)
    assert Counter(event.sequence for event in events) == Counter(whole)
    assert report.published == len(whole)
    assert set(report.dropped) == {"process_ended"}  # it knows how many it had in memory
    assert report.highest_sequence == report.seen


async def test_killed_at_work_loses_nothing_spooled(capturing: Capturing) -> None:
    first = capturing.start()
    producer = await first.find_producer()
    await capturing.wait_for_more_events(producer)
    first.kill()
    whole = await capturing.find_spooled(producer)
    await _drain_spool(capturing, producer)
    events = await capturing.read_events(producer)
    came = {event.sequence for event in events}
    assert whole <= came
    # They were spooled one by one: only the tail is missing.
    assert came == set(range(1, max(came) + 1))
    # A duplicate was acknowledged and not yet removed; it is the same inference.
    assert len({(event.sequence, event.event["data_storage_key"]) for event in events}) == len(came)


def check_events(events: list[PublishedEvent], report: ProducerReport) -> None:
    """Check that the books name all that is lost, and that no number is used twice."""
    assert report.queued == 0
    assert report.highest_sequence == report.seen - report.sampled_out
    times = Counter(event.sequence for event in events)
    inferences = {(event.sequence, event.event["inference_id"]) for event in events}
    assert {event.key for event in events} == {f"detector/{name}" for _, name in inferences}
    assert len(inferences) == len(times)
    assert len({name for _, name in inferences}) == len(times)
    missing = report.highest_sequence - len(times)
    # Kafka may have it, though the process had no time to count it.
    assert 0 <= missing <= sum(report.dropped.values()), report
    assert len(times) >= report.published


@pytest.mark.long
@pytest.mark.parametrize("spool", ["off", "overflow", "all"])
async def test_capture_process_is_killed_repeatedly(capturing: Capturing, spool: str) -> None:
    process = capturing.start(PROXY_SPOOL=spool)
    producer = await process.find_producer()
    killed: set[int] = set()
    for _ in range(3):
        await capturing.wait_for_more_events(producer)  # it continues each time
        killed.add(await process.kill_capture())
    assert len(killed) == 3
    process.stop()
    report = await capturing.wait_for_final_report(producer)
    check_events(await capturing.read_events(producer), report)
    assert set(report.dropped) <= {"process_ended", "torn"}
    if spool != "off":
        assert await capturing.list_spool() == []


async def test_killed_serving_process_has_its_exchanges_published(capturing: Capturing) -> None:
    # so few that the socket holds them, if the capture process finds no CPU to read them
    process = capturing.start(waiting=60, PROXY_SPOOL="off")
    producer = await process.find_producer()
    await capturing.wait_for_more_events(producer)
    below = process.kill_serving()
    report = await capturing.wait_for_final_report(producer)
    await asyncio.to_thread(psutil.wait_procs, below, timeout=300)
    assert not [child for child in below if child.is_running()]
    check_events(await capturing.read_events(producer), report)
    assert set(report.dropped) <= {"process_ended"}
    # Only the exchanges of a few milliseconds were in its memory alone.
    assert report.dropped.get("process_ended", 0) <= 20, report


async def find_queued(capturing: Capturing, producer: str) -> int:
    reports = await capturing.read_reports(producer)
    return max((report.queued for report in reports), default=0)


async def test_killed_serving_process_while_a_server_is_away(capturing: Capturing) -> None:
    """Without a spool they are lost after the grace period, and the final report says so."""
    process = capturing.start(PROXY_SPOOL="off", PROXY_GRACE_SECONDS="1", S3_ENDPOINT=NOBODY)
    producer = await process.find_producer()

    await until(partial(find_queued, capturing, producer), lambda queued: queued > 100)
    process.kill_serving()
    report = await capturing.wait_for_final_report(producer)
    check_events([], report)
    assert report.dropped["left"] > 50


async def test_what_a_stuck_capture_process_held_is_reported(capturing: Capturing) -> None:
    """The serving process counts it as lost, or as left in the spool."""
    for spool, lost in (("off", 1.0), ("all", 0.0)):
        process = capturing.start(
            most=200, PROXY_SPOOL=spool, PROXY_GRACE_SECONDS="1", S3_ENDPOINT=NOBODY
        )
        producer = await process.find_producer()
        await until(partial(find_queued, capturing, producer), lambda queued: queued == 200)
        if spool == "all":
            await until(partial(capturing.find_spooled, producer), lambda files: len(files) == 200)
        await process.freeze_capture()
        process.stop()
        report = await capturing.wait_for_final_report(producer)
        assert (report.seen, report.queued) == (200, 200 * (1 - lost)), spool
        assert report.dropped.get("left", 0) == 200 * lost, spool


async def test_publishes_events_without_a_topic_of_reports(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: MakeTopic
) -> None:
    events = topic(1)
    proxy_settings = servers.make_proxy_settings(
        kafka_server, minio_server, bucket, kafka_topic=events, kafka_reports_topic="no topic"
    )
    async with servers.start_captures(proxy_settings) as captures:
        assert servers.hand_over(captures, 1)
        await servers.wait_until_published(captures, 1)
        await captures.stop(2)  # nobody takes its final report
    assert len(await servers.read_events(kafka_server, events)) == 1


@pytest.mark.real_kafka
async def test_reports_continue_after_a_gap_in_sequence_numbers(
    kafka_server: Kafka, minio_server: S3, topic: MakeTopic
) -> None:
    """aiokafka numbers a batch, and may drop it if its partition has no leader for long: the broker
    then refuses all later batches."""
    name = topic(1)
    publisher = Publisher(
        servers.make_proxy_settings(kafka_server, minio_server, "any", kafka_reports_topic=name)
    )
    try:
        await publisher.report(b"a", b"1")
        assert publisher._producer is not None
        manager = publisher._producer._txn_manager
        manager.increment_sequence_number(TopicPartition(name, 0), 1)
        with pytest.raises(OutOfOrderSequenceNumber):
            await asyncio.wait_for(publisher.report(b"a", b"2"), 300)
        await asyncio.wait_for(publisher.report(b"a", b"3"), 300)
    finally:
        await publisher.close()
