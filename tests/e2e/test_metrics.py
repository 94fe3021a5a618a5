"""Every metric of the list moves when the thing happens: real services, real servers."""

import asyncio
import base64
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from minio.commonconfig import COMPLIANCE
from minio.retention import Retention
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.producer_reports import ProducerReport, encode
from inference_store.platform.metrics import METRICS, SERVICES, Entry
from tests.e2e.capture.test_line import detector
from tests.e2e.metric_moves import Samples, has_moved
from tests.http_requests import send
from tests.integration.proxy.rest_server import upstream
from tests.polling import until
from tests.producer import START, Producer, capture
from tests.servers.fixtures import MakeEnvironment, MakeTopic, unique
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
OLD = START - timedelta(days=3)
MODEL = "people-detector"
TOKEN = "the-token-of-the-metrics-test"
# Of an issuer that is unavailable: its keys would be needed to tell whether it signed this.
SIGNED = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg": "RS256", "kid": "1"}', b"{}", b"signature")
)


class Scraped:
    """The samples of the services' /metrics over time: each at its highest."""

    def __init__(self) -> None:
        self.highest: dict[str, Samples] = {}

    def take(self, page: str) -> None:
        for name, labels, value in _list_samples(page):
            result = self.highest.setdefault(name, {})
            result[labels] = max(result.get(labels, value), value)

    def of(self, entry: Entry) -> Samples:
        """A counter's or gauge's samples; of a histogram how often it was observed."""
        name = f"{entry.name}_count" if entry.kind == "histogram" else entry.name
        return self.highest.get(name, {})

    def still(self) -> list[str]:
        short = {entry.name.removeprefix("inference_store_"): entry for entry in METRICS}
        return [name for name, entry in short.items() if not has_moved(name, self.of(entry))]


def read_metrics(service: Service) -> str:
    return send(f"{service.admin}/metrics").decode()


def _list_samples(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+)(\{.*\})? (\S+)", line):
            yield match[1], match[2] or "", float(match[3])


@dataclass
class Store:
    services: dict[str, Service]
    producer: Producer
    api: str
    scraped: Scraped

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, accept: str = "*/*"
    ) -> int:
        seconds = aiohttp.ClientTimeout(total=300)
        headers = {"Authorization": f"Bearer {token}", "Accept": accept}
        async with (
            aiohttp.ClientSession(timeout=seconds, headers=headers) as session,
            session.request(method, f"{self.api}/v1{path}", json=body) as answer,
        ):
            await answer.read()
            return answer.status

    async def until_moved(self, *names: str, seconds: float = 600) -> None:
        async def still() -> set[str]:
            # All at once: some values are high for seconds alone.
            running = [each for each in self.services.values() if each.process.running]
            pages = await asyncio.gather(*(asyncio.to_thread(read_metrics, it) for it in running))
            for page in pages:
                self.scraped.take(page)
            return set(names) & set(self.scraped.still())

        await until(still, lambda remaining: not remaining, seconds=seconds)


@asynccontextmanager
async def run_store(
    environment: dict[str, str], proxy: dict[str, str], folder: Path
) -> AsyncIterator[Store]:
    async with AsyncExitStack() as opened:
        services: dict[str, Service] = {}
        for name in SERVICES:
            changes = proxy if name == "proxy" else {}
            services[name] = Service(name, environment | changes, folder)
            opened.callback(services[name].stop)
        for service in services.values():
            await asyncio.to_thread(service.wait_ready)
        topic = environment["INFERENCE_STORE_KAFKA_TOPIC"]
        producer = await opened.enter_async_context(Producer(environment, topic))
        api = f"http://127.0.0.1:{environment['INFERENCE_STORE_API_PORT']}"
        try:
            yield Store(services, producer, api, Scraped())
        finally:  # shown if the test fails
            for service in services.values():
                print(service.name, service.text[-20000:])


async def test_every_metric_moves_when_the_thing_happens(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    engine: AsyncEngine,
    database: str,
    postgres_server: Postgres,
    minio_server: S3,
    tmp_path: Path,
) -> None:
    bucket = minio_server.create_bucket(unique(), object_lock=True)
    environment = service_environment(
        KAFKA_TOPIC=topic(2), KAFKA_REPORTS_TOPIC=topic(1), S3_BUCKET=bucket,
        API_PORT=str(free_port()),
        # For so long a query waits, and another takes its turn: meanwhile both are scraped.
        POSTGRES_POOL_SIZE="4", QUERY_TIMEOUT_SECONDS="75",
        POSTGRES_READ_DSN=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing",
        RETENTION_INTERVAL_SECONDS="3600", POLICY_GRACE_SECONDS="0",
        INGESTER_DEAD_LETTER_LIMIT="12",
        AUTH="on", API_TOKEN=TOKEN, OIDC_AUDIENCE="the-store",
        OIDC_ISSUER=f"http://127.0.0.1:{free_port()}",
    )  # fmt: skip
    async with engine.begin() as connection:
        long_ago = "now() - interval '500 days', 'somebody', 'something'"
        await connection.execute(text(f"INSERT INTO audit (at, actor, action) SELECT {long_ago}"))
    slow = Slow()
    async with (
        upstream(slow) as port,
        run_store(environment, _make_proxy_settings(port, tmp_path), tmp_path) as store,
    ):
        await _capture(store, environment, tmp_path, slow)
        await _ingest(store)
        await _publish_report(store, environment)
        await _ask(store, engine)
        await _block_the_writer(store, engine)
        await _lose_postgres(store, postgres_server, database)
        await _delete(store, minio_server, bucket)
        await _halt(store)
        assert store.scraped.still() == []
        _check_own_metrics(store)


def _make_proxy_settings(port: int, folder: Path) -> dict[str, str]:
    """Return more settings of the proxy: no object store answers it, and little fits its memory."""
    config = folder / "proxy.yaml"
    config.write_text(
        f"upstreams: [{{name: one, url: 'http://127.0.0.1:{port}', protocols: [v2]}},"
        " {name: logger, cloud_events: /events}]\n"
        "models: [{model: sampled, sampling: {share: 0}}, {model: bare, strip_metadata: true}]\n"
    )
    (folder / "spool").mkdir()
    changes = {
        "PROXY_PORT": str(free_port()),
        "PROXY_CONFIG": str(config),
        "PROXY_CAPTURE_BYTES": "300000",
        "PROXY_BODY_BYTES": "100000",
        "PROXY_SPOOL": "all",
        "PROXY_SPOOL_DIRECTORY": str(folder / "spool"),
        "S3_ENDPOINT": f"http://127.0.0.1:{free_port()}",
    }
    return {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}


class Slow:
    """The stub of a detector; `slow` answers when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "/slow/" in request.path:
            await self.let.wait()
        return await detector(request)


async def _capture(store: Store, environment: dict[str, str], folder: Path, slow: Slow) -> None:
    """Calls while no object store answers and the spool breaks, and one when all is well."""
    proxy = store.services["proxy"]
    await _call(proxy, "people")
    await _call(proxy, "sampled")
    await _call(proxy, "people", 150_000)
    await _call(proxy, "bare", 350_000)
    await _call(proxy, "broken", status=500)
    await _call(proxy, "people", path="ready")
    calling = asyncio.create_task(_call(proxy, "slow"))
    await store.until_moved("proxy_calls_in_progress")
    slow.let.set()
    await calling
    await store.until_moved(
        *("proxy_captures_spooled", "proxy_spool_bytes", "proxy_captures_queued"),
        *("proxy_incomplete_captures_total", "proxy_trouble_total", "proxy_capture_seconds"),
        *("proxy_call_seconds", "proxy_unstripped_calls_total"),
    )
    shutil.rmtree(folder / "spool")
    for _ in range(8):
        await _call(proxy, "people", 90_000)
    await store.until_moved(
        "proxy_spool_trouble_total", "proxy_capture_bytes", "proxy_captures_dropped_total"
    )
    await asyncio.to_thread(proxy.kill)
    (folder / "spool").mkdir()
    proxy.restart(S3_ENDPOINT=environment["INFERENCE_STORE_S3_ENDPOINT"])
    await asyncio.to_thread(proxy.wait_ready)
    await _call(proxy, "people")
    await store.until_moved("proxy_captures_total", "proxy_events_total")


async def _call(
    proxy: Service, model: str, size: int = 100, *, path: str = "infer", status: int = 200
) -> None:
    """A call through the proxy is answered whatever becomes of its capture."""
    sent = {"name": "image", "shape": [1], "datatype": "BYTES", "data": ["x" * size]}
    url = f"http://127.0.0.1:{proxy.setting('PROXY_PORT')}/v2/models/{model}/{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"inputs": [sent]}) as answer,
    ):
        assert answer.status == status
        await answer.read()


async def _ingest(store: Store) -> None:
    old = [capture(n, received_at=OLD) for n in range(20)]
    new = [capture(n) for n in range(20, 40)]
    unreadable, late = capture(50, received_at=OLD), capture(51, received_at=OLD)
    await store.producer.put(unreadable, "data", "response")
    await store.producer.put_bytes(unreadable.key("metadata"), b"{not json")
    await store.producer.produce(*old, *new)
    await store.producer.publish_all(
        [b"not json", *(event_capture.event for event_capture in new[:5])]
    )
    await store.producer.publish(unreadable.event)
    await store.producer.put(late, "data", "metadata")
    await store.producer.publish(late.event)
    await store.until_moved(
        *("ingester_events_total", "ingester_dead_letters_total", "ingester_flagged_total"),
        *("dead_letters_open", "parked_events", "parked_oldest_seconds", "books_events"),
        *("partitions_spans", "ingester_oldest_unprocessed_seconds", "ready"),
    )
    await store.producer.put(late, "response")
    await store.until_moved("ingester_retried_total", "partitions_ahead_seconds")


async def _publish_report(store: Store, environment: dict[str, str]) -> None:
    now = datetime.now(UTC)
    report = ProducerReport(producer="p", reporter="p", number=1, booted_at=now, reported_at=now)
    async with Producer(
        environment, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"]
    ) as reporter:
        await reporter.publish_all([encode(report), b"no report"])
        await store.until_moved("ingester_reports_total", "books_producers")


async def _ask(store: Store, engine: AsyncEngine) -> None:
    key = {"key": "frame_number", "type": "int", "operator": "gt", "value": 3}
    question = {"metadata_filter": [key], "prediction": {"label": "person"}}
    assert await store.ask("POST", f"/models/{MODEL}/inferences/query", question) == 200
    path = f"/models/{MODEL}/inferences"
    assert await store.ask("GET", path) == 200
    assert await store.ask("GET", path, accept="application/x-ndjson") == 200
    assert await store.ask("POST", f"/models/{MODEL}/exports", {}) == 202
    assert await store.ask("GET", "/models", token="wrong") == 401
    assert await store.ask("GET", "/models", token=SIGNED) == 503
    assert await store.ask("POST", f"/models/{MODEL}/inferences/count", question) == 200
    view = {"name": "all", "model_id": MODEL, "shared": "project", "watch": {"every": "PT1M"}}
    assert await store.ask("POST", "/views", view) == 201
    await store.until_moved("saved_query", "saved_query_timestamp_seconds", "saved_query_failed")
    async with engine.begin() as connection:
        tables = "inference, metadata_number, prediction"
        await connection.execute(text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
        # Two of one caller, who may run one at a time.
        count = ("POST", f"/models/{MODEL}/inferences/count", question)
        tasks = [asyncio.create_task(store.ask(*count)) for _ in range(2)]
        await store.until_moved("api_requests_in_progress", "api_turns_taken", "api_turns_waiting")
        assert sorted(await asyncio.gather(*tasks)) == [429, 503]
    await store.until_moved(
        "api_query_seconds", "api_query_timeouts_total", "api_replica_away_total",
        "api_turn_wait_seconds", "api_turns_refused_total",
        "api_streams_total", "api_streamed_inferences_total",
    )  # fmt: skip


async def _block_the_writer(store: Store, engine: AsyncEngine) -> None:
    """Block the writer: lag must rise all the same."""
    async with engine.begin() as connection:
        await connection.execute(text("LOCK TABLE inference IN ACCESS EXCLUSIVE MODE"))
        await store.producer.produce(*(capture(n) for n in range(100, 130)))
        await store.until_moved("ingester_lag_events", "ingester_lag_seconds")


async def _lose_postgres(store: Store, server: Postgres, dsn: str) -> None:
    name = dsn.rsplit("/", 1)[1]
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    shut, open_ = (f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {x}' for x in ("false", "true"))
    await asyncio.to_thread(server.execute, shut, cut)
    try:
        await store.until_moved("ingester_trouble_total")
    finally:
        await asyncio.to_thread(server.execute, open_)
    for service in store.services.values():
        await asyncio.to_thread(service.wait_ready)


async def _delete(store: Store, s3: S3, bucket: str) -> None:
    """All has expired; one object is locked, so that its erasure fails and stays."""
    object_retention = Retention(COMPLIANCE, datetime.now(UTC) + timedelta(hours=2))
    s3.client().set_object_retention(bucket, capture(30).key("data"), object_retention)
    rule = {"keep_input": "PT1S", "keep_inference": "PT1S"}
    path = f"/models/{MODEL}/retention-policy"
    body = {"level": "model", "id": MODEL, "rules": [rule]}
    assert await store.ask("PUT", path, body) in {200, 201}
    assert await store.ask("POST", f"{path}/run") == 202
    assert await store.ask("POST", "/reconciliations", {}) == 202
    names = (entry.name.removeprefix("inference_store_") for entry in METRICS)
    await store.until_moved(*(name for name in names if name.startswith("retention_")))


async def _halt(store: Store) -> None:
    """Make events of a model that worked until now fail; those of others would be set aside."""
    events = [json.loads(capture(number).event) for number in range(500, 540)]
    broken = [event | {"request_received_at": "yesterday"} for event in events]
    await store.producer.publish_all([json.dumps(unreadable).encode() for unreadable in broken])
    await store.until_moved("ingester_halted")


def _check_own_metrics(store: Store) -> None:
    for name, service in store.services.items():
        scraped = Scraped()
        scraped.take(read_metrics(service))
        owners = {
            entry.owner
            for entry in METRICS
            for sample in entry.samples
            if sample in scraped.highest
        }
        assert owners - {"all but proxy"} == {name, "every"}
        assert "process_resident_memory_bytes" in scraped.highest
