"""Events that are set aside up to a limit, and the reports of producers about themselves."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations, unsettled
from inference_store.index.registrations import Details
from inference_store.index.tables import audit, producer_report, unsettled_event
from inference_store.index.unsettled import Selection, UnsettledEvent
from inference_store.inference.producer_reports import ProducerReport, encode
from inference_store.ingester.reports import Reports
from inference_store.platform.metrics import SHOWN
from inference_store.platform.settings import IngesterSettings
from tests.integration.api.conftest import blobs, client, make_app, settings  # noqa: F401
from tests.integration.ingester.conftest import (
    MANY,
    RunningIngester,
    StartIngester,
    expire_parked,
    list_troubles,
    read_health,
    wait_for_counts,
    wait_until_ready,
)
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, MakeTopic, unique
from tests.servers.kafka import Kafka, KafkaServer
from tests.servers.minio import S3, MinioUser, statement
from tests.service_process import Service
from tests.settings import make_settings
from tests.transactions import transact
from tests.warm.process import run_command

_LIMIT = "dead letter limit"


async def wait_for_halt(service: Service) -> str:
    return await until(
        lambda: read_health(service, _LIMIT), lambda reason: "events could not be stored" in reason
    )


def make_broken_event(number: int) -> bytes:
    event = json.loads(capture(number).event)
    return json.dumps(event | {"request_received_at": "yesterday"}).encode()


async def test_many_bad_messages_halt_the_line(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    # so that the first batch is over the limit
    await producer.publish_at_once([b"bad"] * 20)
    await wait_for_halt(service)
    assert service.metrics("ingester_halted") == 1
    await wait_for_counts(engine)
    service.stop()
    service.restart(INGESTER_DEAD_LETTER_LIMIT="50")
    await producer.produce(*MANY)
    await wait_for_counts(engine, stored=20, dead=20)


async def test_nobody_waits_for_the_bad_messages_of_one_source(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    """Unless events of it are stored too."""
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.produce(*MANY[:10])
    await wait_for_counts(engine, stored=10)
    another = [
        json.dumps(json.loads(make_broken_event(number)) | {"model_id": "m"})
        for number in range(20)
    ]
    await producer.publish_all([b"bad"] * 30 + [event.encode() for event in another])
    await producer.produce(*MANY[10:])
    await wait_for_counts(engine, stored=20, dead=50)
    assert service.metrics("ingester_halted") == 0
    assert '"action": "confined"' in service.text
    await producer.publish_at_once([make_broken_event(number) for number in range(100, 120)])
    await wait_for_halt(service)
    await wait_for_counts(engine, stored=20, dead=50)


async def test_operator_resumes(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    service_environment: MakeEnvironment,
    tmp_path: Path,
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.publish_all([b"bad"] * 20)
    assert "inference-store resume" in await wait_for_halt(service)
    done = run_command("resume", environment=service_environment(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    await wait_for_counts(engine, dead=20)
    await wait_until_ready(service, _LIMIT)
    async with engine.connect() as connection:
        entries = (await connection.execute(select(audit.c.action, audit.c.detail))).all()
    assert [entry.action for entry in entries] == ["limit_lifted"]
    assert entries[0].detail["until"][:19] in done.stdout


def test_rejects_invalid_durations(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = service_environment()
    for duration in ("P2D", "P1M", "forever", "x"):
        refused = run_command("resume", "--for", duration, environment=environment, folder=tmp_path)
        assert refused.returncode == 2, duration
        assert "--for" in refused.stderr


REFUSED = [capture(number, prefix="refused") for number in range(100, 103)]


class Rights:
    """The rights of the ingester, and a way to start one with its credentials."""

    def __init__(self, user: MinioUser, bucket: str, start: StartIngester) -> None:
        self._user = user
        self._bucket = bucket
        self._start = start
        self.allow_all()

    @property
    def _list(self) -> dict[str, object]:
        return statement("Allow", ["ListBucket"], self._bucket)

    @property
    def _get(self) -> dict[str, object]:
        return statement("Allow", ["GetObject"], f"{self._bucket}/*")

    def allow_all(self) -> None:
        self._user.may(self._list, self._get)

    def refuse_one_prefix(self) -> None:
        deny = statement("Deny", ["GetObject"], f"{self._bucket}/refused/*")
        self._user.may(self._list, self._get, deny)

    def refuse_all(self) -> None:
        self._user.may(self._list)

    async def start_ingester(self, **changes: str) -> RunningIngester:
        """Start an ingester with these rights; return it and a producer with rights of its own."""
        service, producer = await self._start(**changes)
        service.stop()
        keys = {"S3_ACCESS_KEY": self._user.access_key, "S3_SECRET_KEY": self._user.secret_key}
        return service.restart(**keys), producer


@pytest.fixture
def rights(minio_server: S3, bucket: str, start_ingester: StartIngester) -> Rights:
    return Rights(MinioUser(minio_server, unique("user")), bucket, start_ingester)


async def count_set_aside(engine: AsyncEngine) -> Counter[str]:
    here = unsettled_event.c
    async with engine.connect() as connection:
        rows = await connection.execute(select(here.state, here.reason))
        return Counter(f"{state} {reason}" for state, reason in rows)


@pytest.mark.real_minio
async def test_a_lasting_refusal_makes_a_dead_letter(rights: Rights, engine: AsyncEngine) -> None:
    rights.refuse_one_prefix()
    _, producer = await rights.start_ingester(INGESTER_PARKED_GIVE_UP_SECONDS="1")
    # The refused object comes first and alone: no other shows that the bucket is readable.
    await producer.produce(REFUSED[0])
    await wait_for_counts(engine, dead=1)
    (letter,) = await transact(engine, unsettled.find, Selection(), limit=10)
    assert letter.rejection.reason == "blob_forbidden"
    assert "alone is refused" in letter.rejection.detail
    assert "AccessDenied" in letter.rejection.detail
    await producer.produce(MANY[0])
    await wait_for_counts(engine, stored=1, dead=1)


@pytest.mark.real_minio
async def test_parks_what_is_refused_alone_and_waits_for_a_store_that_refuses_all(
    rights: Rights, engine: AsyncEngine
) -> None:
    """Rights are removed while it runs; no more events are parked, and none become dead letters."""
    rights.refuse_one_prefix()
    service, producer = await rights.start_ingester()
    await producer.produce(MANY[0], *REFUSED)
    await wait_for_counts(engine, stored=1, parked=3)
    assert await count_set_aside(engine) == {"parked blob_forbidden": 3}
    assert await read_health(service, "object store") == "ready"
    rights.refuse_all()
    await producer.produce(*MANY[1:])
    health = await until(
        lambda: read_health(service, "object store"), lambda health: "Denied" in health
    )
    assert "AccessDenied" in health
    await expire_parked(engine)
    before = await count_troubles(service)
    await until(lambda: count_troubles(service), lambda count: count >= before + 4)
    await wait_for_counts(engine, stored=1, parked=3)
    assert await count_set_aside(engine) == {"parked blob_forbidden": 3}
    rights.allow_all()
    await wait_for_counts(engine, stored=23)
    await wait_until_ready(service, "object store")


async def count_troubles(service: Service) -> float:
    """Return how often the pipeline and the retries have waited."""
    return await asyncio.to_thread(service.metrics, "ingester_trouble_total")


LATE = capture(1)


async def list_waiting(engine: AsyncEngine) -> list[UnsettledEvent]:
    return await transact(engine, unsettled.find, Selection(state="parked"), limit=10)


async def list_letters(engine: AsyncEngine) -> list[UnsettledEvent]:
    return await transact(engine, unsettled.find, Selection(kind="dead letter"), limit=10)


async def test_an_event_parked_again_keeps_its_row(producer: Producer, engine: AsyncEngine) -> None:
    await producer.put(LATE, "metadata")
    await producer.publish(LATE.event)
    await wait_for_counts(engine, parked=1)
    [before] = await list_waiting(engine)
    [after] = await until(lambda: list_waiting(engine), lambda events: events[0].attempts >= 2)
    assert (after.id, after.created_at) == (before.id, before.created_at)
    await expire_parked(engine)
    await wait_for_counts(engine, dead=1)
    [letter] = await list_letters(engine)
    assert (letter.state, letter.rejection.reason) == ("open", "blob_missing")
    assert re.search(r"within \d+ tries", letter.rejection.detail)


async def test_a_redriven_letter_that_is_parked_is_settled_or_open_again(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    """Of a model that was unknown; the response of one comes, that of the other never does."""
    _, producer = await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")
    for event_capture in (LATE, capture(2)):
        await producer.put(event_capture, "metadata")
        await producer.publish(event_capture.event)
    await wait_for_counts(engine, dead=2)
    letters = await list_letters(engine)
    assert [letter.rejection.reason for letter in letters] == ["unknown_model"] * 2
    async with engine.begin() as connection:
        await registrations.put(connection, LATE.model_id, Details())
        assert await unsettled.retry(connection, Selection()) == 2
    await wait_for_counts(engine, parked=2)
    assert [letter.state for letter in await list_letters(engine)] == ["parked"] * 2
    await producer.put(LATE, "response")
    await wait_for_counts(engine, stored=1, parked=1)
    await expire_parked(engine)
    await wait_for_counts(engine, stored=1, dead=1)
    assert await list_waiting(engine) == []
    assert {letter.state for letter in await list_letters(engine)} == {"stored", "open"}
    assert await transact(engine, unsettled.retry, Selection()) == 1


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
        [kept_report] = first["reports"]
        told = running | {"number": 2, "dropped": dropped, "published": 7, "events": 7}
        assert kept_report | told == kept_report
        assert first["closes"] is True
        assert (first["given"], first["missing"]) == (9, 3)
        assert first["reason"] == (
            "2 dropped or refused, and counted (no_budget 1, refused 1);"
            " 1 queued, in a spool, or on their way"
        )
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
    assert accounts["p-1"]["missing"] == 3
    assert "1 unexplained" in accounts["p-1"]["reason"]
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
async def test_a_silent_producer_is_dead_until_its_next_report(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    engine: AsyncEngine,
    client: httpx.AsyncClient,  # noqa: F811
) -> None:
    name, stop = topic(), asyncio.Event()
    environment = service_environment(KAFKA_REPORTS_TOPIC=name)
    reports = Reports(_settings(environment), engine, stop, look_seconds=0.2)
    async with Producer(environment, name) as reporter, asyncio.TaskGroup() as tasks:
        tasks.create_task(reports.run())
        await reporter.publish(encode_report("p", 1))
        await _wait_for_accounts(client, lambda producers: "p" in producers)
        await _make_silent(engine)
        await _wait_for_accounts(client, lambda producers: producers["p"]["state"] == "dead")
        await reporter.publish(encode_report("p", 2))
        await _wait_for_accounts(client, lambda producers: producers["p"]["state"] == "running")
        stop.set()


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
        await _wait_for_accounts(
            client, lambda producers: producers["p"]["reports"][0]["seen"] == 5
        )
    await asyncio.to_thread(own_kafka.stop)
    stop.set()
    await asyncio.wait_for(running, 300)
