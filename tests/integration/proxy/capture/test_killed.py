"""A process that is killed with its spool on: the next one publishes what was spooled."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.servers.kafka import Kafka
from tests.servers.plugin import faults

from .process import CapturingProcess
from .servers import PublishedEvent, list_folder, read_events, read_reports


async def _read_events_of(
    kafka: Kafka, environment: dict[str, str], producer: str
) -> list[PublishedEvent]:
    events = await read_events(kafka, environment["INFERENCE_STORE_KAFKA_TOPIC"])
    return [event for event in events if event.producer == producer]


async def _drain_spool(kafka: Kafka, environment: dict[str, str], tmp_path: Path, dead: str) -> Any:
    """Start another process, wait until it has drained the spool, end it, and return its report."""
    # Its own captures must be published within its grace period, even on a slow machine.
    heir = CapturingProcess(environment, tmp_path, "heir", most=20)
    try:
        await heir.find_producer()

        async def ask() -> bool:
            return dead in await list_folder(tmp_path / "spool")

        await until(ask, lambda there: not there, seconds=180)
        heir.stop()
    finally:
        heir.kill()
    assert "left 0" in heir.log.read_text()
    assert await list_folder(tmp_path / "spool") == []
    all_reports = await read_reports(kafka, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"])
    (last,) = [
        report
        for report in all_reports
        if report.producer == dead != report.reporter and report.final
    ]
    assert last.closes
    return last


async def test_killed_while_a_server_is_away_publishes_the_spool(
    kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    away = environment | {"INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9"}
    first = CapturingProcess(away, tmp_path, "first")
    try:
        producer = await first.find_producer()

        async def ask() -> int:
            names = await list_folder(tmp_path / "spool" / producer)
            return sum(name.isdigit() for name in names)

        await until(ask, lambda count: count > 200)
    finally:
        first.kill()
    names = await list_folder(tmp_path / "spool" / producer)
    whole = {int(name) for name in names if name.isdigit()}
    torn = len([name for name in names if name.endswith(".part")])
    assert await _read_events_of(kafka_server, environment, producer) == []
    report = await _drain_spool(kafka_server, environment, tmp_path, producer)
    events = await _read_events_of(kafka_server, environment, producer)
    # Nothing is lost or doubled, and the id and the numbers are the old ones.
    assert Counter(event.sequence for event in events) == Counter(whole)
    assert whole == set(range(1, len(whole) + 1))
    assert (report.published, report.dropped.get("torn", 0)) == (len(whole), torn)


@pytest.mark.parametrize("moment", [0, faults(1), faults(2)])
async def test_killed_at_work_loses_nothing_spooled(
    moment: int, kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    first = CapturingProcess(environment, tmp_path, "first")
    try:
        producer = await first.find_producer()

        async def ask() -> int:
            return len(await _read_events_of(kafka_server, environment, producer))

        await until(ask, lambda count: count > 30 * (moment + 1))
    finally:
        first.kill()
    names = await list_folder(tmp_path / "spool" / producer)
    whole = {int(name) for name in names if name.isdigit()}
    await _drain_spool(kafka_server, environment, tmp_path, producer)
    events = await _read_events_of(kafka_server, environment, producer)
    came = {event.sequence for event in events}
    assert whole <= came
    # They were spooled one by one: only the tail is missing.
    assert came == set(range(1, max(came) + 1))
    # A duplicate was acknowledged and not yet removed; it is the same inference.
    twice = Counter(event.sequence for event in events)
    for sequence, times in twice.items():
        keys = {event.event["data_storage_key"] for event in events if event.sequence == sequence}
        assert len(keys) == 1, (sequence, times)


async def test_counts_a_truncated_file_and_publishes_the_others(
    kafka_server: Kafka, environment: dict[str, str], tmp_path: Path
) -> None:
    away = environment | {"INFERENCE_STORE_S3_ENDPOINT": "http://127.0.0.1:9"}
    first = CapturingProcess(away, tmp_path, "first")
    try:
        producer = await first.find_producer()
        folder = tmp_path / "spool" / producer

        async def ask() -> int:
            return sum(name.isdigit() for name in await list_folder(folder))

        await until(ask, lambda count: count > 20)
    finally:
        first.kill()
    victim = folder / f"{7:020d}"
    victim.write_bytes(victim.read_bytes()[:-1])
    (folder / f"{10**6:020d}.part").write_bytes(b"half")
    whole = {int(name) for name in await list_folder(folder) if name.isdigit()} - {7}
    report = await _drain_spool(kafka_server, environment, tmp_path, producer)
    events = await _read_events_of(kafka_server, environment, producer)
    assert {event.sequence for event in events} == whole
    assert report.dropped["torn"] >= 2
    assert report.published == len(whole)
