"""Reports of producers, read by a real ingester from a real Kafka and fetched from the api."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import producer_report
from inference_store.inference.producer_reports import ProducerReport, encode
from inference_store.ingester.reports import Reports
from inference_store.platform.metrics import SHOWN
from inference_store.platform.settings import IngesterSettings
from tests.integration.api.conftest import blobs, client, make_app, settings  # noqa: F401
from tests.integration.ingester.conftest import StartIngester, list_troubles, wait_for_counts
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, MakeTopic, unique
from tests.servers.kafka import Kafka, KafkaServer
from tests.settings import make_settings

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
Producers = dict[str, dict[str, Any]]


def encode_report(producer: str, number: int, **counts: Any) -> bytes:
    fields = {"reporter": producer, "booted_at": AT, "reported_at": AT, **counts}
    return encode(ProducerReport(producer=producer, number=number, **fields))


async def _fetch_accounts(api: httpx.AsyncClient) -> Producers:
    answer = await api.get("/v1/accounting")
    assert answer.status_code == 200
    return {producer["producer"]: producer for producer in answer.json()["producers"]}


async def _wait_for_accounts(
    api: httpx.AsyncClient, enough: Callable[[Producers], bool]
) -> Producers:
    return await until(lambda: _fetch_accounts(api), enough)


@pytest.mark.real_kafka
async def test_the_books_of_producers(
    start_ingester: StartIngester,
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    client: httpx.AsyncClient,  # noqa: F811
) -> None:
    reports = topic(2)
    service, producer = await start_ingester(partitions=2, KAFKA_REPORTS_TOPIC=reports)
    captures = [capture(n) for n in range(8)]
    await producer.put_all(captures)
    for n, event_capture in enumerate(captures, start=1):
        if n not in (3, 6):  # dropped after they were given a sequence
            headers = [("producer", b"p-1"), ("sequence", str(n).encode())]
            await producer.publish(event_capture.event, headers=headers, partition=n % 2)
    async with Producer(service_environment(), reports) as reporter:
        running = {"seen": 12, "sampled_out": 2, "queued": 1, "highest_sequence": 9}
        dropped = {"no_budget": 1, "refused": 1}
        await reporter.publish(encode_report("p-1", 1, seen=1, queued=1), key=b"p-1")
        for _ in range(2):  # delivered twice
            report = encode_report("p-1", 2, **running, dropped=dropped, published=7, events=7)
            await reporter.publish(report, key=b"p-1")
        for broken in (b"", b"{}", b"not json", b"\xff" * 100, b"{" + b" " * 70_000):
            await reporter.publish(broken)
        await reporter.publish(b"", key=b"p-1", headers=[("producer", b"p-1")])
        await reporter.publish(encode_report("p-2", 1, seen=2, dropped={"left": 1}, final=True))
        await reporter.publish(encode_report("long ago", 1), timestamp_ms=1_500_000_000_000)

        # It counts a report after it has stored it.
        await until(
            lambda: asyncio.to_thread(service.metrics, "ingester_reports_total"),
            lambda count: count >= 11,
        )

        def have_arrived(producers: Producers) -> bool:
            return "p-1" in producers and producers["p-1"]["arrived"] == 6

        accounts = await _wait_for_accounts(client, have_arrived)
        first = accounts["p-1"]
        assert first["state"] == "running"
        assert {name: first.get(name, value) for name, value in running.items()} == running
        assert (first["dropped"], first["published"], first["events"]) == (dropped, 7, 7)
        assert first["closes"] is True
        assert (first["given"], first["highest"], first["missing"]) == (9, 8, 2)
        assert first["holes"] == {
            "dropped": 2, "waiting": 1, "unknown_tail": 0, "unexplained": 0,
        }  # fmt: skip
        assert [kept_report["number"] for kept_report in first["reports"]] == [2]
        assert (accounts["p-2"]["state"], accounts["p-2"]["closes"]) == ("ended", False)
        assert "long ago" not in accounts
        await asyncio.to_thread(service.wait_ready)

        # After a restart it continues from the stored reports.
        await asyncio.to_thread(service.stop)
        last = encode_report(
            "p-1", 3, **(running | {"queued": 0}), dropped=dropped, published=8, final=True
        )
        await reporter.publish(last, key=b"p-1")
        service.restart()
        accounts = await _wait_for_accounts(
            client, lambda producers: producers["p-1"]["state"] == "ended"
        )
    assert accounts["p-1"]["holes"] == {
        "dropped": 2, "waiting": 0, "unknown_tail": 0, "unexplained": 1,
    }  # fmt: skip
    assert "broken_report" in service.log.read_text()


@pytest.mark.real_kafka
async def test_reads_a_topic_that_is_created_later(
    start_ingester: StartIngester,
    service_environment: MakeEnvironment,
    kafka_server: Kafka,
    engine: AsyncEngine,
    client: httpx.AsyncClient,  # noqa: F811
) -> None:
    name = unique("reports")
    service, producer = await start_ingester(KAFKA_REPORTS_TOPIC=name)
    await producer.produce(*(capture(n) for n in range(20)))

    await wait_for_counts(engine, stored=20)
    await asyncio.to_thread(service.wait_ready)
    assert list_troubles(service) == []
    kafka_server.create_topic(name)
    async with Producer(service_environment(), name) as reporter:
        await reporter.publish(encode_report("late", 1))
        await _wait_for_accounts(client, lambda producers: "late" in producers)


def _settings(environment: dict[str, str]) -> IngesterSettings:
    """Return the settings of the ingester from the environment of a service."""
    names = {f"INFERENCE_STORE_{name.upper()}": name for name in IngesterSettings.model_fields}
    values: dict[str, Any] = {
        names[key]: value for key, value in environment.items() if key in names
    }
    return make_settings(IngesterSettings, **values)


async def _make_silent(engine: AsyncEngine) -> None:
    """Let an hour pass since the reports."""
    async with engine.begin() as connection:
        long_ago = func.now() - timedelta(hours=1)
        await connection.execute(producer_report.update().values(heard_at=long_ago))


@pytest.mark.real_kafka
async def test_silent_producer_is_dead_and_its_tail_unknown(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    engine: AsyncEngine,
    client: httpx.AsyncClient,  # noqa: F811
) -> None:
    name, stop = topic(1), asyncio.Event()
    environment = service_environment(KAFKA_REPORTS_TOPIC=name)
    counts = {"seen": 9, "queued": 4, "published": 5, "highest_sequence": 9}
    ended = {"seen": 1, "published": 1, "highest_sequence": 1, "final": True}
    async with Producer(environment, name) as reporter, asyncio.TaskGroup() as tasks:
        reports = Reports(_settings(environment), engine, stop, look_seconds=0.2)
        tasks.create_task(reports.run())
        await reporter.publish(encode_report("dies", 1, **counts))
        await reporter.publish(encode_report("ends", 1, **ended))
        await _wait_for_accounts(client, lambda producers: {"dies", "ends"} <= producers.keys())
        await _make_silent(engine)
        producers = await _wait_for_accounts(
            client, lambda producers: producers["dies"]["state"] == "dead"
        )
        assert producers["dies"]["holes"]["unknown_tail"] == 9
        assert producers["ends"]["state"] == "ended"
        assert producers["ends"]["holes"]["unknown_tail"] == 0
        # The next one finds its spool, and reports what became of it.
        found = {"reporter": "next", "seen": 4, "published": 4, "highest_sequence": 9}
        await reporter.publish(encode_report("dies", 1, **found, final=True))
        producers = await _wait_for_accounts(
            client, lambda producers: len(producers["dies"]["reports"]) == 2
        )
        stop.set()
    dies = producers["dies"]
    assert (dies["seen"], dies["published"], dies["queued"], dies["unsettled"]) == (9, 9, 0, 0)
    # of what they say was published, nothing arrived
    assert (dies["holes"]["unknown_tail"], dies["closes"]) == (9, False)


def _count_waits_for_kafka() -> float:
    name = "inference_store_ingester_trouble_total"
    return SHOWN["ingester"].get_sample_value(name, {"server": "kafka"}) or 0


@pytest.mark.real_kafka
async def test_continues_after_kafka_was_away_and_stops_without_it(
    service_environment: MakeEnvironment,
    own_kafka: KafkaServer,
    engine: AsyncEngine,
    client: httpx.AsyncClient,  # noqa: F811
) -> None:
    name, stop = own_kafka.create_topic(unique("reports")), asyncio.Event()
    environment = service_environment(
        KAFKA_REPORTS_TOPIC=name, KAFKA_BOOTSTRAP_SERVERS=own_kafka.bootstrap_servers
    )
    reports = Reports(_settings(environment), engine, stop, look_seconds=0.2)
    running = asyncio.create_task(reports.run())
    async with Producer(environment, name) as reporter:
        await reporter.publish(encode_report("p", 1))
        await _wait_for_accounts(client, lambda producers: "p" in producers)
    await asyncio.to_thread(own_kafka.stop)
    await _make_silent(engine)

    async def count_waits() -> float:
        # It is not declared dead while its reports cannot be read.
        assert (await _fetch_accounts(client))["p"]["state"] == "running"
        return _count_waits_for_kafka()

    before = _count_waits_for_kafka()
    await until(count_waits, lambda count: count >= before + 3)
    await asyncio.to_thread(own_kafka.start)
    async with Producer(environment, name) as reporter:
        await reporter.publish(encode_report("p", 2, seen=5, queued=5))
        await _wait_for_accounts(client, lambda producers: producers["p"]["seen"] == 5)
    await asyncio.to_thread(own_kafka.stop)
    stop.set()
    await asyncio.wait_for(running, 300)
