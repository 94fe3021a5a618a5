"""One of the proxy's two processes is killed at any moment: what is lost stands in the books, what
came is there once, and the other one goes on."""

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

from .process import Capturing
from .servers import Arrived, arrived, folder_names, reports

Environment = dict[str, str]


def without_spool(environment: Environment) -> Environment:
    return environment | {"INFERENCE_STORE_PROXY_SPOOL": "off"}


async def final(kafka: Kafka, environment: Environment, producer: str) -> ProducerReport:
    """Its last word, once it was said."""

    async def ask() -> list[ProducerReport]:
        said = await reports(kafka, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"])
        return [each for each in said if each.producer == producer and each.final]

    found = await until(ask, bool, seconds=180)
    return found[-1]


async def more_arrived(kafka: Kafka, environment: Environment) -> None:
    """Wait until some more have come than are there now."""

    async def ask() -> int:
        return len(await arrived(kafka, environment["INFERENCE_STORE_KAFKA_TOPIC"]))

    least = await ask() + 20
    await until(ask, lambda count: count > least)


def check(found: list[Arrived], report: ProducerReport) -> None:
    """Nothing is lost that the books do not name, and no number means two exchanges."""
    assert report.closes
    assert report.queued == 0
    assert report.highest_sequence == report.seen - report.sampled_out
    times = Counter(each.sequence for each in found)
    inferences = {(each.sequence, each.event["inference_id"]) for each in found}
    assert len(inferences) == len(times)
    assert len({name for _, name in inferences}) == len(times)
    missing = report.highest_sequence - len(times)
    # Kafka may have had it, and the process not the time to count it.
    assert 0 <= missing <= sum(report.dropped.values()), report
    assert len(times) >= report.published


@pytest.mark.parametrize("spool", ["off", "overflow", "all"])
@pytest.mark.parametrize("seed", [1, faults(2)])
async def test_the_capture_process_is_killed_again_and_again(
    seed: int, spool: str, kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    environment |= {"INFERENCE_STORE_PROXY_SPOOL": spool}
    chance = random.Random(seed)
    one = Capturing(environment, tmp_path, "one")
    try:
        producer = await one.producer()
        killed: set[int] = set()
        for _ in range(3):
            await more_arrived(kafka_server, environment)  # it goes on each time
            await asyncio.sleep(chance.random() / 10)
            killed.add(await one.kill_capture())
        assert len(killed) == 3
        one.process.stop()
    finally:
        one.kill()
    report = await final(kafka_server, environment, producer)
    found = await arrived(kafka_server, environment["INFERENCE_STORE_KAFKA_TOPIC"])
    assert {each.producer for each in found} == {producer}
    check(found, report)
    assert set(report.dropped) <= {"process_ended", "torn"}
    if spool != "off":
        assert await folder_names(tmp_path / "spool") == []


@pytest.mark.parametrize("seed", [1, faults(2), faults(3)])
async def test_the_serving_process_is_killed_and_what_it_had_handed_over_is_published(
    seed: int, kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    environment = without_spool(environment)
    one = Capturing(environment, tmp_path, "one")
    try:
        producer = await one.producer()
        await more_arrived(kafka_server, environment)
        await asyncio.sleep(random.Random(seed).random() / 10)
        below = one.kill_serving()
    finally:
        one.kill()
    report = await final(kafka_server, environment, producer)
    await asyncio.to_thread(psutil.wait_procs, below, timeout=120)
    assert not [each for each in below if each.is_running()]
    check(await arrived(kafka_server, environment["INFERENCE_STORE_KAFKA_TOPIC"]), report)
    assert set(report.dropped) <= {"process_ended"}
    # a few milliseconds' exchanges were in its memory alone
    assert report.dropped.get("process_ended", 0) <= 20, report


async def test_the_serving_process_is_killed_while_a_server_is_away(
    kafka_server: Kafka, environment: Environment, tmp_path: Path
) -> None:
    """What no spool holds is lost after the grace, and the last word says so."""
    environment = without_spool(environment) | {
        "INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9",
        "INFERENCE_STORE_PROXY_GRACE_SECONDS": "1",
    }
    one = Capturing(environment, tmp_path, "one")
    try:
        producer = await one.producer()
        await asyncio.sleep(2)
        one.kill_serving()
    finally:
        one.kill()
    report = await final(kafka_server, environment, producer)
    check([], report)
    assert report.dropped["left"] > 50
