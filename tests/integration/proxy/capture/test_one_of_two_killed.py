"""One of the two processes of the proxy is killed at any moment: the books name what is lost, each
published exchange is there once, and the other process continues."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import psutil
import pytest

from inference_store.inference.producer_reports import ProducerReport
from tests.polling import until
from tests.servers.kafka import Kafka
from tests.servers.plugin import faults

from .process import CapturingProcess
from .servers import PublishedEvent, list_folder, read_events, read_reports

Environment = dict[str, str]


def turn_spool_off(environment: Environment) -> Environment:
    return environment | {"INFERENCE_STORE_PROXY_SPOOL": "off"}


async def wait_for_final_report(
    kafka: Kafka, environment: Environment, producer: str
) -> ProducerReport:
    """Wait for the final report of a producer."""

    async def ask() -> list[ProducerReport]:
        all_reports = await read_reports(kafka, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"])
        return [report for report in all_reports if report.producer == producer and report.final]

    final_reports = await until(ask, bool, seconds=180)
    return final_reports[-1]


async def wait_for_more_events(kafka: Kafka, environment: Environment) -> None:
    """Wait until some more events are published than are there now."""

    async def ask() -> int:
        return len(await read_events(kafka, environment["INFERENCE_STORE_KAFKA_TOPIC"]))

    least = await ask() + 20
    await until(ask, lambda count: count > least)


def check_events(events: list[PublishedEvent], report: ProducerReport) -> None:
    """Check that the books name all that is lost, and that no number is used twice."""
    assert report.closes
    assert report.queued == 0
    assert report.highest_sequence == report.seen - report.sampled_out
    times = Counter(event.sequence for event in events)
    inferences = {(event.sequence, event.event["inference_id"]) for event in events}
    assert len(inferences) == len(times)
    assert len({name for _, name in inferences}) == len(times)
    missing = report.highest_sequence - len(times)
    # Kafka may have it, though the process had no time to count it.
    assert 0 <= missing <= sum(report.dropped.values()), report
    assert len(times) >= report.published


@pytest.mark.long
@pytest.mark.parametrize("spool", ["off", "overflow", "all"])
@pytest.mark.parametrize("seed", [1, faults(2)])
async def test_capture_process_is_killed_repeatedly(
    seed: int, spool: str, kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    environment |= {"INFERENCE_STORE_PROXY_SPOOL": spool}
    chance = random.Random(seed)
    capturing = CapturingProcess(environment, tmp_path, "one")
    try:
        producer = await capturing.find_producer()
        killed: set[int] = set()
        for _ in range(3):
            await wait_for_more_events(kafka_server, environment)  # it continues each time
            await asyncio.sleep(chance.random() / 10)
            killed.add(await capturing.kill_capture())
        assert len(killed) == 3
        capturing.stop()
    finally:
        capturing.kill()
    report = await wait_for_final_report(kafka_server, environment, producer)
    events = await read_events(kafka_server, environment["INFERENCE_STORE_KAFKA_TOPIC"])
    assert {event.producer for event in events} == {producer}
    check_events(events, report)
    assert set(report.dropped) <= {"process_ended", "torn"}
    if spool != "off":
        assert await list_folder(tmp_path / "spool") == []


@pytest.mark.parametrize("seed", [1, faults(2), faults(3)])
async def test_killed_serving_process_has_its_exchanges_published(
    seed: int, kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    environment = turn_spool_off(environment)
    # so few that the socket holds them, if the capture process finds no CPU to read them
    capturing = CapturingProcess(environment, tmp_path, "one", waiting=60)
    try:
        producer = await capturing.find_producer()
        await wait_for_more_events(kafka_server, environment)
        await asyncio.sleep(random.Random(seed).random() / 10)
        below = capturing.kill_serving()
    finally:
        capturing.kill()
    report = await wait_for_final_report(kafka_server, environment, producer)
    await asyncio.to_thread(psutil.wait_procs, below, timeout=120)
    assert not [process for process in below if process.is_running()]
    check_events(
        await read_events(kafka_server, environment["INFERENCE_STORE_KAFKA_TOPIC"]), report
    )
    assert set(report.dropped) <= {"process_ended"}
    # Only the exchanges of a few milliseconds were in its memory alone.
    assert report.dropped.get("process_ended", 0) <= 20, report


async def test_killed_serving_process_while_a_server_is_away(
    kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    """Without a spool they are lost after the grace period, and the final report says so."""
    environment = turn_spool_off(environment) | {
        "INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9",
        "INFERENCE_STORE_PROXY_GRACE_SECONDS": "1",
    }
    capturing = CapturingProcess(environment, tmp_path, "one")
    try:
        producer = await capturing.find_producer()

        async def ask() -> list[int]:
            topic = environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"]
            return [report.queued for report in await read_reports(kafka_server, topic)]

        await until(ask, lambda queued: max(queued, default=0) > 100)
        capturing.kill_serving()
    finally:
        capturing.kill()
    report = await wait_for_final_report(kafka_server, environment, producer)
    check_events([], report)
    assert report.dropped["left"] > 50
