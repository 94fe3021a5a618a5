"""A process that is killed with its spool on: what was spooled is published by the next one."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.servers.kafka import Kafka
from tests.servers.plugin import faults

from .process import Capturing
from .servers import Arrived, arrived, folder_names, reports


async def _of_producer(kafka: Kafka, environment: dict[str, str], producer: str) -> list[Arrived]:
    found = await arrived(kafka, environment["INFERENCE_STORE_KAFKA_TOPIC"])
    return [each for each in found if each.producer == producer]


async def _drained(kafka: Kafka, environment: dict[str, str], tmp_path: Path, dead: str) -> Any:
    """Start the next one, wait until it has drained what the dead left, and end it; its report."""
    # what it captures itself has to be out within its grace, however slow the machine is
    heir = Capturing(environment, tmp_path, "heir", most=20)
    try:
        await heir.producer()

        async def ask() -> bool:
            return dead in await folder_names(tmp_path / "spool")

        await until(ask, lambda there: not there, seconds=180)
        heir.process.stop()
    finally:
        heir.kill()
    assert "left 0" in heir.log.read_text()
    assert await folder_names(tmp_path / "spool") == []
    said = await reports(kafka, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"])
    (last,) = [each for each in said if each.producer == dead != each.reporter and each.final]
    assert last.closes
    return last


async def test_killed_while_a_server_is_away_all_that_was_spooled_arrives(
    kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    away = environment | {"INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9"}
    first = Capturing(away, tmp_path, "first")
    try:
        producer = await first.producer()

        async def ask() -> int:
            names = await folder_names(tmp_path / "spool" / producer)
            return sum(name.isdigit() for name in names)

        await until(ask, lambda count: count > 200)
    finally:
        first.kill()
    names = await folder_names(tmp_path / "spool" / producer)
    whole = {int(name) for name in names if name.isdigit()}
    torn = len([name for name in names if name.endswith(".part")])
    assert await _of_producer(kafka_server, environment, producer) == []
    report = await _drained(kafka_server, environment, tmp_path, producer)
    found = await _of_producer(kafka_server, environment, producer)
    # nothing lost, nothing twice, under the old id and the old numbers
    assert Counter(each.sequence for each in found) == Counter(whole)
    assert whole == set(range(1, len(whole) + 1))
    assert (report.published, report.dropped.get("torn", 0)) == (len(whole), torn)


@pytest.mark.parametrize("moment", [0, faults(1), faults(2)])
async def test_killed_at_work_nothing_that_was_spooled_is_lost(
    moment: int, kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    first = Capturing(environment, tmp_path, "first")
    try:
        producer = await first.producer()

        async def ask() -> int:
            return len(await _of_producer(kafka_server, environment, producer))

        await until(ask, lambda count: count > 30 * (moment + 1))
    finally:
        first.kill()
    names = await folder_names(tmp_path / "spool" / producer)
    whole = {int(name) for name in names if name.isdigit()}
    await _drained(kafka_server, environment, tmp_path, producer)
    found = await _of_producer(kafka_server, environment, producer)
    came = {each.sequence for each in found}
    assert whole <= came
    # one by one they were spooled: no hole but the tail that was not
    assert came == set(range(1, max(came) + 1))
    # what came twice was acknowledged and not yet removed; it is the same inference
    twice = Counter(each.sequence for each in found)
    for sequence, times in twice.items():
        keys = {each.event["data_storage_key"] for each in found if each.sequence == sequence}
        assert len(keys) == 1, (sequence, times)


async def test_a_file_that_was_cut_is_counted_and_the_others_arrive(
    kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    away = environment | {"INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9"}
    first = Capturing(away, tmp_path, "first")
    try:
        producer = await first.producer()
        folder = tmp_path / "spool" / producer

        async def ask() -> int:
            return sum(name.isdigit() for name in await folder_names(folder))

        await until(ask, lambda count: count > 20)
    finally:
        first.kill()
    victim = folder / f"{7:020d}"
    victim.write_bytes(victim.read_bytes()[:-1])
    (folder / f"{10**6:020d}.part").write_bytes(b"half")
    whole = {int(name) for name in await folder_names(folder) if name.isdigit()} - {7}
    report = await _drained(kafka_server, environment, tmp_path, producer)
    found = await _of_producer(kafka_server, environment, producer)
    assert {each.sequence for each in found} == whole
    assert report.dropped["torn"] >= 2
    assert report.published == len(whole)
