"""Processes: how they start and stop, speak TLS, and wait for servers that are away or frozen."""

import asyncio
import json
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine, is_transient
from inference_store.platform.settings import PostgresSettings
from tests.polling import until
from tests.servers.certificates import Authority
from tests.servers.fixtures import MakeEnvironment, migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command

from .running_api import RunningApi, run_api


def test_start_and_stop(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = service_environment(API_PORT="0", API_ADMIN_PORT="0", TEST_COLD="1")
    with run_api(environment, tmp_path) as api:
        assert api.get("/v1/models").json() == {"items": [], "next": None}
        assert api.get("/v1/models/secret/inferences?filter=ok").status_code == 404
        # the line follows the answer
        wait_until(lambda: len(_list_requests(api)) >= 2, seconds=300, what="both lines")
        assert [(line["route"], line["status"]) for line in _list_requests(api)] == [
            ("/v1/models", 200),
            ("/v1/models/{model_id}/inferences", 404),
        ]
        assert "secret" not in api.text
        assert api.get_health().json()["ready"] is True
        metrics = httpx.get(f"{api.admin}/metrics", timeout=300).text
        refused = httpx.post(f"{api.admin}/metrics", timeout=300)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        for kind in ("page", "count"):
            assert f'inference_store_api_query_timeouts_total{{kind="{kind}"}} 0.0' in metrics
        assert api.process.stop() == 0


def _list_requests(api: RunningApi) -> list[dict[str, Any]]:
    """Return the lines about requests that are whole."""
    lines = api.text.rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines if '"action": "request"' in line]


@pytest.mark.parametrize(("host", "port"), [("API", "API"), ("ADMIN", "API_ADMIN")])
def test_a_port_that_is_taken_ends_it_with_a_sentence(
    service_environment: MakeEnvironment, tmp_path: Path, host: str, port: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = str(listener.getsockname()[1])
        ports = {"API_PORT": "0", "API_ADMIN_PORT": "0", f"{port}_PORT": taken}
        done = run_command("api", environment=service_environment(**ports), folder=tmp_path)
    settings = f"INFERENCE_STORE_{host}_HOST and INFERENCE_STORE_{port}_PORT"
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"Address already in use. Change {settings}.")


@pytest.mark.real_minio
def test_is_ready_and_answers_without_the_object_store(
    service_environment: MakeEnvironment, own_minio: MinioServer, tmp_path: Path
) -> None:
    """Whether it says nothing, or refuses connections."""
    own_minio.start_if_ended()
    own_minio.create_bucket(bucket := unique())
    keys = {"S3_ACCESS_KEY": own_minio.access_key, "S3_SECRET_KEY": own_minio.secret_key}
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=own_minio.endpoint, S3_BUCKET=bucket, **keys
    )
    with run_api(environment, tmp_path) as api:
        api.wait_ready()
        stopped = own_minio.pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            answers = [(api.get_health(), api.get("/v1/models"))]
            with ThreadPoolExecutor(20) as callers:  # each needs the ledger, one after the other
                refused = list(callers.map(partial(_set_policy, api), range(60)))
            assert httpx.get(f"{api.admin}/health/live", timeout=300).status_code == 200
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert {answer.status_code for answer in refused} == {503}
        assert refused[0].json()["type"] == "/docs/errors#unavailable"
        wait_until(lambda: _set_policy(api).status_code == 200, seconds=300, what="an answer")
        own_minio.kill()
        answers.append((api.get_health(), api.get("/v1/models")))
    for health, answer in answers:
        assert health.status_code == 200
        assert health.json()["parts"]["postgres"] == "ready"
        assert health.json()["parts"]["object store"] != "ready"
        assert answer.status_code == 200


def _set_policy(api: RunningApi, _: int = 0) -> httpx.Response:
    policy = {"level": "default", "id": None, "rules": [{"name": "all", "keep_inference": "P2Y"}]}
    return httpx.put(f"{api.address}/v1/retention-policy", json=policy, timeout=300)


def test_is_not_ready_before_the_ledger_was_compared(
    service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """Its Postgres may be an older backup, which has what was erased later."""
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=f"http://127.0.0.1:{free_port()}", S3_TIMEOUT_SECONDS="1"
    )
    with run_api(environment, tmp_path) as api:
        answer, health = api.get("/v1/models"), api.get_health()
    assert health.status_code == 503
    assert health.json()["parts"]["ledger"] == "not compared with the bucket yet"
    assert answer.status_code == 503
    assert answer.json()["type"] == "/docs/errors#unavailable"


async def test_is_ready_while_queries_hold_every_connection(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment(API_PORT="0", POSTGRES_POOL_SIZE="1")
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE relation = 'registration'::regclass AND NOT granted"
    )
    with run_api(environment, tmp_path) as api:
        await asyncio.to_thread(api.wait_ready)
        async with engine.connect() as holding:
            await holding.execute(text("LOCK TABLE registration IN ACCESS EXCLUSIVE MODE"))
            request = asyncio.create_task(asyncio.to_thread(api.get, "/v1/models"))

            async def count_waiting() -> int:
                return int(await holding.scalar(waiting) or 0)

            await until(count_waiting, lambda count: count == 1)
            health = await asyncio.to_thread(api.get_health)
        assert health.status_code == 200
        assert (await request).status_code == 200


def test_behind_a_proxy(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    """The audit has the client that a trusted proxy names; a large head is answered with 431."""
    environment = service_environment(
        AUTH="on", API_TOKEN=TOKEN, API_PORT="0", API_TRUSTED_PROXIES="127.0.0.1"
    )
    with run_api(environment, tmp_path) as api:
        api.wait_ready()
        through = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "evil, 203.0.113.9"}
        body = {"name": "x", "grants": [{"role": "reader"}]}
        response = httpx.post(f"{api.address}/v1/keys", json=body, headers=through, timeout=300)
        assert response.status_code == 201
        [entry] = api.get("/v1/audit", TOKEN).json()["items"]
        assert (entry["action"], entry["client"]) == ("key_created", "203.0.113.9")
        large = api.get("/v1/models", TOKEN, X="x" * 17_000)
        assert large.status_code == 431
        assert large.headers["x-content-type-options"] == "nosniff"


def test_the_ports_speak_tls(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("service")
    files = {"CERTIFICATE_FILE": str(pair.certificate), "KEY_FILE": str(pair.key)}
    admin = {f"ADMIN_TLS_{kind}": path for kind, path in files.items()}
    api = {f"API_TLS_{kind}": path for kind, path in files.items()}
    port = str(free_port())
    environments = {
        "api": service_environment(API_PORT=port, **admin, **api),
        "retention": service_environment(**admin),
    }
    services = [Service(name, each, tmp_path) for name, each in environments.items()]
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    try:
        urls = [f"https://127.0.0.1:{port}/v1/models"]
        for service in services:
            service.trusted = trusted
            service.wait_ready()
            urls.append(f"{service.admin}/health/live")
        for url in urls:
            with urlopen(url, context=trusted, timeout=300) as answer:
                assert json.load(answer)
            with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
                urlopen(url, timeout=300)
            with pytest.raises((URLError, ConnectionError)):
                urlopen(url.replace("https", "http"), timeout=300)
        renewed = authority.issue("service").certificate.read_text()
        for url in urls:  # with the renewed files, which they read again by themselves
            shown = ssl.get_server_certificate(("127.0.0.1", urlsplit(url).port or 0), timeout=300)
            assert shown.strip() == renewed.strip()
    finally:
        for service in services:
            service.stop()


def test_service_ends_if_the_key_is_of_another_certificate(
    service_environment: MakeEnvironment, authority: Authority, tmp_path: Path
) -> None:
    environment = service_environment(
        API_TLS_CERTIFICATE_FILE=str(authority.issue("one").certificate),
        API_TLS_KEY_FILE=str(authority.issue("other").key),
    )
    with run_api(environment, tmp_path) as api:
        wait_until(lambda: not api.process.running, seconds=300, what="the end")
    assert "INFERENCE_STORE_API_TLS_KEY_FILE are no pair" in api.text


@contextmanager
def _frozen(server: Server) -> Iterator[None]:
    """Stop every process of the server, beginning with the one that starts others."""
    stopped: list[int] = []
    while started := [pid for pid in server.pids() if pid not in stopped]:
        _signal_all(started, signal.SIGSTOP)
        stopped += started
    try:
        yield
    finally:
        _signal_all(stopped, signal.SIGCONT)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; one of them may have ended since it was listed."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.fixture
async def watched(own_postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    """An engine as services have it, with two connections."""
    dsn = own_postgres.create_database(unique())
    settings = PostgresSettings(postgres_dsn=SecretStr(dsn), postgres_pool_size=2)
    engine = create_engine(settings, application="test")
    yield engine
    await engine.dispose()


async def test_statements_and_connecting_fail_until_it_answers(
    own_postgres: PostgresServer, watched: AsyncEngine
) -> None:
    """A long statement, one that waits for a connection, and what is asked afterwards."""

    async def ask(statement: str) -> object:
        async with watched.connect() as connection:
            return await connection.scalar(text(statement))

    assert await ask("SELECT 1") == 1
    slow = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(300)'"
    long = [asyncio.create_task(ask("SELECT pg_sleep(300)")) for _ in range(2)]
    await until(lambda: asyncio.to_thread(own_postgres.ask, slow), lambda n: int(str(n)) == 2)
    waiting = asyncio.create_task(ask("SELECT 2"))
    with _frozen(own_postgres):
        for ended in await asyncio.gather(*long, waiting, return_exceptions=True):
            assert isinstance(ended, DBAPIError | OSError), ended
            assert is_transient(ended), ended
        with pytest.raises(OSError, match="keeps connections and does not answer"):
            await ask("SELECT 3")

    async def ask_again() -> object:
        try:
            return await ask("SELECT 4")
        except (DBAPIError, OSError):
            return None

    await until(ask_again, lambda answer: answer == 4)


def test_the_api_refuses_until_it_answers(
    service_environment: MakeEnvironment, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    dsn = own_postgres.create_database(unique())
    migrate(dsn)
    environment = service_environment(API_PORT="0", POSTGRES_DSN=dsn)
    with run_api(environment, tmp_path) as api:
        api.wait_ready()
        assert api.get("/v1/models").status_code == 200
        with _frozen(own_postgres):
            answers = [api.get("/v1/models"), api.get("/v1/models")]
            health = api.get_health()
            live = httpx.get(f"{api.admin}/health/live", timeout=300)
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["type"] == "/docs/errors#unavailable"
        assert health.status_code == 503
        assert health.json()["parts"]["postgres"] != "ready"
        assert live.status_code == 200
        wait_until(lambda: api.get("/v1/models").status_code == 200, seconds=300, what="an answer")
        api.wait_ready()


@pytest.mark.real_kafka
def test_an_ingester_waits_for_a_frozen_kafka(
    service_environment: MakeEnvironment, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """Live, not ready, and it goes on; or it ends when it is told to."""
    environment = service_environment(
        KAFKA_BOOTSTRAP_SERVERS=own_kafka.bootstrap_servers,
        KAFKA_TOPIC=own_kafka.create_topic(unique()),
        INGESTER_ADMIN_PORT="0",
    )
    with Service("ingester", environment, tmp_path) as ingester:
        ingester.wait_ready()
        with _frozen(own_kafka):
            wait_until(lambda: not ingester.health()["ready"], seconds=300, what="not ready")
            assert "within 5 s" in ingester.health()["parts"]["kafka"]
            assert httpx.get(f"{ingester.admin}/health/live", timeout=300).status_code == 200
        ingester.wait_ready(300)
        with _frozen(own_kafka):
            assert ingester.process.stop(seconds=300) == 0
            assert "left_silently" in ingester.text
