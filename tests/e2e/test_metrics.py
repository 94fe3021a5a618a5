"""Every metric of the list moves when the thing happens: real services, real servers."""

import asyncio
import base64
import json
import re
import shutil
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
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
from tests.e2e.capture.detector import detector
from tests.integration.proxy.rest_server import upstream
from tests.polling import until
from tests.producer import START, Producer, capture
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
OLD = START - timedelta(days=3)
MODEL = "people-detector"
TOKEN = "the-token-of-the-metrics-test"
# Of an issuer that is away: its keys would be needed to tell whether it signed this.
SIGNED = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg": "RS256", "kid": "1"}', b"{}", b"signature")
)

Samples = dict[str, float]


def above_zero(found: Samples) -> bool:
    return sum(found.values()) > 0


def has(*labels: str) -> Callable[[Samples], bool]:
    """Each label value stands at some sample that moved."""

    def check(found: Samples) -> bool:
        moved = [name for name, value in found.items() if value > 0]
        return all(any(f'"{label}"' in name for name in moved) for label in labels)

    return check


# What each metric must show at some moment of the story below, whatever service shows it.
MOVES: dict[str, Callable[[Samples], bool]] = {
    "build_info": above_zero,
    "connections": has("admin"),
    # They must be zero: tests/integration/platform/serving has thousands of silent connections.
    "connections_refused_total": lambda found: found != {},
    "connections_late_total": lambda found: found != {},
    "proxy_call_seconds": has("v2", "unrecognised", "one", "ok", "failed"),
    "proxy_calls_in_progress": has("rest"),
    "proxy_captures_total": has("seen", "sampled_out", "dropped", "published"),
    "proxy_captures_dropped_total": has("no_budget"),
    "proxy_events_total": above_zero,
    # It must be zero: tests/integration/proxy/test_grpc_ends.py has calls that are refused.
    "proxy_refused_calls_total": lambda found: found != {},
    "proxy_unstripped_calls_total": has("no_room"),
    "proxy_incomplete_captures_total": has("request_over_cap"),
    "proxy_captures_queued": above_zero,
    "proxy_capture_bytes": above_zero,
    "proxy_capture_budget_bytes": above_zero,
    "proxy_captures_spooled": above_zero,
    "proxy_spool_bytes": above_zero,
    "proxy_spool_limit_bytes": above_zero,
    "proxy_spool_trouble_total": above_zero,
    "proxy_trouble_total": has("object store"),
    "proxy_capture_seconds": has("prepare"),
    "ready": has("postgres", "kafka", "object store"),
    "heartbeat_age_seconds": above_zero,
    "ingester_events_total": has("stored", "duplicate", "dead", "parked"),
    "ingester_event_bytes_total": above_zero,
    "ingester_dead_letters_total": has("not_json", "blob_missing"),
    "ingester_lag_events": above_zero,
    "ingester_lag_seconds": above_zero,
    "ingester_oldest_unprocessed_seconds": above_zero,
    "ingester_delay_seconds": above_zero,
    "ingester_batch_seconds": has("read", "write"),
    "ingester_stage_seconds": has(
        *("decode", "look_up", "fetch", "parse", "prepare"),
        *("transaction", "sort_out", "insert", "set_aside", "books"),
    ),
    "ingester_batch_events": above_zero,
    "ingester_halted": above_zero,
    "ingester_trouble_total": has("postgres"),
    # It must be zero: tests/e2e/faults/test_rebalances.py freezes an ingester amid a COPY.
    "ingester_stalled_sessions_total": lambda found: found != {},
    "ingester_flagged_total": has("metadata_unreadable"),
    "ingester_partitions_assigned": above_zero,
    "ingester_retried_total": has("stored"),
    "ingester_reports_total": has("kept", "broken"),
    "books_producers": has("running"),
    # It must be zero: .../index/accounting/test_producer_accounts.py has one that is open.
    "books_open_producers": lambda found: found != {},
    "books_events": has("stored", "duplicate", "dead"),
    # It must be zero: tests/integration/operations/test_figures.py breaks the books by hand.
    "books_open_partitions": lambda found: found != {},
    # Zero but on an older backup: tests/integration/erasure/ledger/test_services.py restores one.
    "ledger_apart": lambda found: found != {},
    "dead_letters_open": above_zero,
    "parked_events": above_zero,
    "parked_oldest_seconds": above_zero,
    "partitions_spans": above_zero,
    "partitions_ahead_seconds": above_zero,
    "api_requests_total": has("GET", "POST", "/v1/models/{model_id}/inferences/query"),
    "api_request_seconds": above_zero,
    "api_requests_in_progress": above_zero,
    "api_query_seconds": has("page", "count", "metadata+prediction", "everything"),
    "api_query_timeouts_total": above_zero,
    "api_turns_taken": has("query"),
    "api_turns_waiting": has("query"),
    "api_turn_wait_seconds": has("query", "stream"),
    "api_turns_refused_total": has("query", "caller"),
    "api_streams_total": has("complete"),
    "api_streamed_inferences_total": above_zero,
    "api_replica_away_total": above_zero,
    "api_refused_total": has("unauthorized"),
    "api_issuer_fetches_total": has("failed"),
    "retention_runs_total": has("done"),
    "retention_run_seconds": above_zero,
    "retention_step_seconds": has("claim", "delete", "verify", "forget"),
    "retention_erased_total": has("inference"),
    "retention_objects_deleted_total": above_zero,
    "retention_bytes_deleted_total": above_zero,
    "retention_partitions_dropped_total": above_zero,
    "retention_trouble_total": has("postgres", "object_locked"),
    "retention_last_run_timestamp_seconds": above_zero,
    "retention_interval_seconds": above_zero,
    "retention_leading": above_zero,
    "retention_pruned_total": has("audit"),
    "retention_overdue_seconds": above_zero,
    # Nothing is held here: tests/integration/retention/test_figures_of_holds.py holds something.
    "retention_holds": lambda found: found != {},
    "retention_held": lambda found: found != {},
    # Zero within a second: tests/integration/retention/test_linking.py holds the chain up.
    "retention_audit_unlinked_seconds": lambda found: found != {},
    # No erasure ends here: those of tests/integration/retention/test_certificates.py do.
    "retention_certificates_total": lambda found: found != {},
    "retention_certificate_trouble_total": lambda found: found != {},
    "retention_uncertified_total": lambda found: found != {},
    "retention_reconciliations_total": has("done"),
    # What is found may be nothing: tests/integration/operations/reconcile compares what is apart.
    "retention_reconciliation_found": lambda found: found != {},
    "retention_last_reconciliation_timestamp_seconds": above_zero,
    "retention_marked": above_zero,
    "retention_erasures": has("failed"),
    "retention_oldest_erasure_seconds": above_zero,
}


def test_every_metric_of_the_list_has_its_line() -> None:
    assert set(MOVES) == {entry.name.removeprefix("inference_store_") for entry in METRICS}


class Scraped:
    """What the services' /metrics showed over time: every sample at its highest."""

    def __init__(self) -> None:
        self.highest: dict[str, Samples] = {}

    def take(self, service: Service) -> None:
        with urllib.request.urlopen(f"{service.admin}/metrics", timeout=60) as answer:
            for name, labels, value in _samples(answer.read().decode()):
                found = self.highest.setdefault(name, {})
                found[labels] = max(found.get(labels, value), value)

    def of(self, entry: Entry) -> Samples:
        """A counter's or gauge's samples; of a histogram how often it was observed."""
        name = f"{entry.name}_count" if entry.kind == "histogram" else entry.name
        return self.highest.get(name, {})

    def still(self) -> list[str]:
        """The metrics that have not moved yet."""
        short = {entry.name.removeprefix("inference_store_"): entry for entry in METRICS}
        return [name for name, moves in MOVES.items() if not moves(self.of(short[name]))]


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.splitlines():
        if found := re.fullmatch(r"(\w+)(\{.*\})? (\S+)", line):
            yield found[1], found[2] or "", float(found[3])


@dataclass
class Store:
    """All services and what feeds them."""

    services: dict[str, Service]
    producer: Producer
    api: str
    scraped: Scraped

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, accept: str = "*/*"
    ) -> int:
        seconds = aiohttp.ClientTimeout(total=60)
        headers = {"Authorization": f"Bearer {token}", "Accept": accept}
        async with (
            aiohttp.ClientSession(timeout=seconds, headers=headers) as session,
            session.request(method, f"{self.api}/v1{path}", json=body) as answer,
        ):
            await answer.read()
            return answer.status

    async def until_moved(self, *names: str, seconds: float = 180) -> None:
        """Scrape until these have moved."""

        async def still() -> set[str]:
            for service in self.services.values():
                if service.process.running:
                    await asyncio.to_thread(self.scraped.take, service)
            return set(names) & set(self.scraped.still())

        await until(still, lambda left: not left, seconds=seconds)


@asynccontextmanager
async def running(
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
        finally:  # shown where the test fails
            for service in services.values():
                print(service.name, service.text[-20000:])


async def test_every_metric_moves_when_the_thing_happens(
    service_environment: MakeEnvironment,
    topic: Callable[..., str],
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
        INGESTER_PARKED_FIRST_SECONDS="0.5", INGESTER_PARKED_LONGEST_SECONDS="1",
        INGESTER_RETRY_SECONDS="0.2", INGESTER_POLL_SECONDS="0.1", QUERY_TIMEOUT_SECONDS="6",
        POSTGRES_READ_DSN=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing",
        RETENTION_INTERVAL_SECONDS="3600", POLICY_GRACE_SECONDS="0",
        INGESTER_DEAD_LETTER_LIMIT="12",
        QUERIES_AT_ONCE_PER_CALLER="1", QUERY_WAIT_SECONDS="1",
        AUTH="on", API_TOKEN=TOKEN, OIDC_AUDIENCE="the-store",
        OIDC_ISSUER=f"http://127.0.0.1:{free_port()}",
    )  # fmt: skip
    async with engine.begin() as connection:
        long_ago = "now() - interval '500 days', 'somebody', 'something'"
        await connection.execute(text(f"INSERT INTO audit (at, actor, action) SELECT {long_ago}"))
    slow = Slow()
    async with (
        upstream(slow) as port,
        running(environment, _proxy(port, tmp_path), tmp_path) as store,
    ):
        await _capture(store, environment, tmp_path, slow)
        await _ingest(store)
        await _report(store, environment)
        await _ask(store, engine)
        await _stand(store, engine)
        await _lose_postgres(store, postgres_server, database)
        await _delete(store, minio_server, bucket)
        await _halt(store)
        assert store.scraped.still() == []
        _each_shows_its_own(store)


def _proxy(port: int, folder: Path) -> dict[str, str]:
    """What the proxy is told besides: no object store answers it, and little fits its memory."""
    config = folder / "proxy.yaml"
    config.write_text(
        f"upstreams: [{{name: one, url: 'http://127.0.0.1:{port}', protocols: [v2]}}]\n"
        "models: [{model: sampled, sampling: {share: 0}}, {model: bare, strip_metadata: true}]\n"
    )
    (folder / "spool").mkdir()
    changes = {
        "PROXY_PORT": str(free_port()),
        "PROXY_CONFIG": str(config),
        "PROXY_CAPTURE_BYTES": "300000",
        "PROXY_BODY_BYTES": "100000",
        "PROXY_STRIP_BYTES": "100000",
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
    await _call(proxy, "bare", 150_000)
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
    await store.producer.publish_all([b"not json", *(one.event for one in new[:5])])
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


async def _report(store: Store, environment: dict[str, str]) -> None:
    now = datetime.now(UTC)
    said = ProducerReport(producer="p", reporter="p", number=1, booted_at=now, reported_at=now)
    async with Producer(
        environment, environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"]
    ) as reporter:
        await reporter.publish_all([encode(said), b"no report"])
        await store.until_moved("ingester_reports_total", "books_producers")


async def _ask(store: Store, engine: AsyncEngine) -> None:
    key = {"key": "frame_number", "type": "int", "operator": "gt", "value": 3}
    question = {"metadata_filter": [key], "prediction": {"label": "person"}}
    assert await store.ask("POST", f"/models/{MODEL}/inferences/query", question) == 200
    path = f"/models/{MODEL}/inferences"
    assert await store.ask("GET", path) == 200
    assert await store.ask("GET", path, accept="application/x-ndjson") == 200
    assert await store.ask("GET", "/models", token="wrong") == 401
    assert await store.ask("GET", "/models", token=SIGNED) == 503
    assert await store.ask("POST", f"/models/{MODEL}/inferences/count", question) == 200
    async with engine.begin() as connection:
        tables = "inference, metadata_number, prediction"
        await connection.execute(text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
        # Two of one caller, who may run one at a time.
        count = ("POST", f"/models/{MODEL}/inferences/count", question)
        asked = [asyncio.create_task(store.ask(*count)) for _ in range(2)]
        await store.until_moved("api_requests_in_progress", "api_turns_taken", "api_turns_waiting")
        assert sorted(await asyncio.gather(*asked)) == [429, 503]
    await store.until_moved(
        "api_query_seconds", "api_query_timeouts_total", "api_replica_away_total",
        "api_turn_wait_seconds", "api_turns_refused_total",
        "api_streams_total", "api_streamed_inferences_total",
    )  # fmt: skip


async def _stand(store: Store, engine: AsyncEngine) -> None:
    """A writer that stands still: lag rises all the same."""
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
    kept = Retention(COMPLIANCE, datetime.now(UTC) + timedelta(minutes=10))
    s3.client().set_object_retention(bucket, capture(30).key("data"), kept)
    rule = {"keep_input": "PT1S", "keep_inference": "PT1S"}
    path = f"/models/{MODEL}/retention-policy"
    assert await store.ask("PUT", path, {"rules": [rule]}) in {200, 201}
    assert await store.ask("POST", f"{path}/run") == 202
    assert await store.ask("POST", "/reconciliations", {}) == 202
    await store.until_moved(*(name for name in MOVES if name.startswith("retention_")))


async def _halt(store: Store) -> None:
    """What was stored until now fails; of others alone it would be set aside."""
    events = [json.loads(capture(number).event) for number in range(500, 540)]
    broken = [each | {"request_received_at": "yesterday"} for each in events]
    await store.producer.publish_all([json.dumps(each).encode() for each in broken])
    await store.until_moved("ingester_halted")


def _each_shows_its_own(store: Store) -> None:
    for name, service in store.services.items():
        shown = Scraped()
        shown.take(service)
        owners = {
            entry.owner for entry in METRICS for sample in entry.samples if sample in shown.highest
        }
        assert owners - {"all but proxy"} == {name, "every"}
        assert "process_resident_memory_bytes" in shown.highest
