"""Postgres stopped and killed, over and over, while retention erases and events keep coming."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from inference_store.index.tables import erasing, erasure, retention_run
from tests.e2e.faults.away import read_unready_parts
from tests.e2e.faults.books_close import counted, wait_until_drained
from tests.e2e.faults.expiring import (
    check_in_the_end,
    make_captures,
    make_quick_environment,
    set_policies,
)
from tests.e2e.faults.traffic import Published
from tests.polling import until
from tests.producer import Capture
from tests.servers.fixtures import migrate, unique
from tests.servers.minio import S3
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

# How it goes, each time at another moment of an erasure.
ROUNDS = ("stop", "kill", "kill", "stop", "kill", "stop")


@pytest.fixture
def own_environment(
    environment: dict[str, str], own_postgres: PostgresServer, bucket: str
) -> dict[str, str]:
    dsn = own_postgres.create_database(unique())
    migrate(dsn)
    return make_quick_environment(environment | {"INFERENCE_STORE_POSTGRES_DSN": dsn}, bucket)


@pytest.fixture
async def own_engine(own_environment: dict[str, str]) -> AsyncIterator[AsyncEngine]:
    opened_engine = create_engine(own_environment["INFERENCE_STORE_POSTGRES_DSN"])
    yield opened_engine
    await opened_engine.dispose()


async def test_erasures_outlive_postgres(
    own_environment: dict[str, str],
    own_engine: AsyncEngine,
    own_postgres: PostgresServer,
    published: Published,
    minio_server: S3,
    bucket: str,
    tmp_path: Path,
) -> None:
    published.producer = published.producer.use_bucket(bucket)
    stored = make_captures(range(450))
    services = [Service("ingester", own_environment, tmp_path)]
    try:
        await published.under_load(stored, chunk=150)
        await until(lambda: counted(own_engine), lambda result: result.total() == published.records)
        await set_policies(own_engine)
        services.append(Service("retention", own_environment, tmp_path))
        over = asyncio.Event()
        load = asyncio.create_task(publish_until(over, published))
        await go_and_come_back(own_postgres, own_engine, services[1])
        over.set()
        coming = await load
        # Late redeliveries of everything do not bring back what was erased.
        await published.publish(stored)
        await wait_until_drained(own_engine, records=published.records)
        await check_in_the_end(own_engine, [*stored, *coming], minio_server, bucket)
        await check_states(own_engine)
        for service in services:
            assert service.process.running, service.text[-4000:]
            await asyncio.to_thread(service.wait_ready)
    finally:
        for service in services:
            print(service.text[-3000:])
            service.stop()


async def publish_until(over: asyncio.Event, published: Published) -> list[Capture]:
    """Publish until it is over, so that each round finds something to erase, on any machine."""
    coming: list[Capture] = []
    while not over.is_set():
        start = 450 + len(coming)
        some = make_captures(range(start, start + 30))
        await published.under_load(some, chunk=30, pause=1.0)
        coming += some
    return coming


async def go_and_come_back(
    postgres: PostgresServer, engine: AsyncEngine, retention: Service
) -> None:
    """Stop Postgres and start it again, each time while something is marked and not yet erased;
    every other time only once retention has noticed."""
    for number, how in enumerate(ROUNDS):
        await until(lambda: count_marks(engine), lambda count: count > 0)
        await asyncio.to_thread(getattr(postgres, how))
        if number % 2:
            await until(lambda: read_unready_parts(retention), lambda away: "postgres" in away)
        await asyncio.to_thread(postgres.start)


async def count_marks(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(erasing)) or 0)


async def check_states(engine: AsyncEngine) -> None:
    """Check that no erasure or run was left unfinished: only the newest run may be at work."""
    # One run may have gone through all that Postgres did: the next one shows that it ended.
    states = await until(lambda: run_states(engine), lambda states_now: len(states_now) > 1)
    assert set(states[1:]) == {"done"}
    async with engine.connect() as connection:
        assert set((await connection.execute(select(erasure.c.state))).scalars()) == {"deleted"}


async def run_states(engine: AsyncEngine) -> list[str]:
    """The newest first."""
    newest_first = select(retention_run.c.state).order_by(retention_run.c.requested_at.desc())
    async with engine.connect() as connection:
        return list((await connection.execute(newest_first)).scalars())
