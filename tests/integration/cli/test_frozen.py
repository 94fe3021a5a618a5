"""Servers that are frozen, and keep their connections: waits end, and go on when they do."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import engine_of, is_transient
from inference_store.platform.settings import PostgresSettings
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment, migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .running_api import run_api


@contextmanager
def _frozen(server: Server) -> Iterator[None]:
    """Stop every process of the server, beginning with the one that starts others."""
    stopped: list[int] = []
    while started := [pid for pid in server.pids() if pid not in stopped]:
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
        stopped += started
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
async def watched(own_postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    """An engine as services have it, with two connections."""
    dsn = own_postgres.create_database(unique())
    settings = PostgresSettings(postgres_dsn=SecretStr(dsn), postgres_pool_size=2)
    engine = engine_of(settings, application="test")
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
    ingester = Service("ingester", environment, tmp_path)
    try:
        ingester.wait_ready()
        with _frozen(own_kafka):
            wait_until(lambda: not ingester.health()["ready"], seconds=300, what="not ready")
            assert "within 5 s" in ingester.health()["parts"]["kafka"]
            assert httpx.get(f"{ingester.admin}/health/live", timeout=300).status_code == 200
        ingester.wait_ready(300)
        with _frozen(own_kafka):
            assert ingester.process.stop(seconds=300) == 0
            assert "left_silently" in ingester.text
    finally:
        ingester.stop()
