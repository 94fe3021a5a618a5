"""`inference-store migrate` as a process, and what services do on another schema than theirs."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.index.schema import newest
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.synthetic_migration import NEXT, migrations_with_one_more
from tests.warm.process import run_command

LOCK = 7_302_001


def command(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"INFERENCE_STORE_POSTGRES_DSN": dsn, "PATH": ""}
    return run_command("migrate", *arguments, environment=environment)


@pytest.fixture
def empty(postgres_server: Postgres) -> Iterator[str]:
    """The address of a database without tables."""
    name = unique()
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


def test_check_tells_by_its_exit_code_whether_the_schema_is_current(empty: str) -> None:
    behind = command(empty, "--check")
    assert behind.returncode == 1
    assert "run `inference-store migrate`" in behind.stderr
    done = command(empty)
    assert done.returncode == 0, done.stderr
    assert f"The schema is {newest()}." in done.stdout
    assert "0001: The first schema" in done.stdout
    again = command(empty)
    assert "already: nothing to do" in again.stdout
    assert command(empty, "--check").returncode == 0


def test_check_of_a_server_that_is_away(tmp_path: Path) -> None:
    away = command(f"postgresql://127.0.0.1:{free_port()}/nothing", "--check")
    assert away.returncode == 3
    assert "Postgres does not answer" in away.stderr
    assert "Traceback" not in away.stderr
    assert not list(tmp_path.iterdir())


def test_check_waits_for_the_migration(empty: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(command, empty, "--check", "--wait-seconds", "30")
        upgrade(empty)
        assert waiting.result().returncode == 0


async def test_a_second_migration_waits_with_a_message_and_a_deadline(empty: str) -> None:
    holder = await asyncpg.connect(empty)
    try:
        await holder.execute("SELECT pg_advisory_lock($1)", LOCK)
        said: list[str] = []
        with pytest.raises(MigrationBusy, match="Another migration still runs"):
            await asyncio.to_thread(upgrade, empty, wait_seconds=1, say=said.append)
        assert len(said) == 1
        assert f"Another migration runs (process {holder.get_server_pid()}" in said[0]
        assert await holder.fetchval("SELECT to_regclass('inference')") is None
        second = asyncio.create_task(asyncio.to_thread(upgrade, empty, say=said.append))
        await asyncio.to_thread(wait_until, lambda: len(said) > 1, seconds=180, what="its message")
        await holder.execute("SELECT pg_advisory_unlock($1)", LOCK)
        await second
        assert await holder.fetchval("SELECT to_regclass('inference')") is not None
    finally:
        await holder.close()


async def test_a_lock_that_others_hold_is_waited_for_in_short_turns(
    database: str, tmp_path: Path
) -> None:
    migrations = migrations_with_one_more(tmp_path)
    reader = await asyncpg.connect(database)
    said: list[str] = []
    try:
        reading = reader.transaction()
        await reading.start()
        await reader.execute("SELECT count(*) FROM inference")
        with pytest.raises(MigrationBusy, match="hold a lock"):
            await asyncio.to_thread(
                upgrade, database, wait_seconds=1, say=said.append, migrations=migrations
            )
        said.clear()
        task = asyncio.to_thread(upgrade, database, say=said.append, migrations=migrations)
        migrating = asyncio.create_task(task)
        await asyncio.to_thread(
            wait_until, lambda: "again in" in " ".join(said), seconds=180, what="a try"
        )
        await reading.rollback()
        await migrating
        assert said[-1] == f"The schema is {NEXT}."
    finally:
        await reader.close()


def test_two_at_once_do_it_once(empty: str) -> None:
    said: list[str] = []
    started = threading.Barrier(2)

    def migrate() -> None:
        started.wait()
        upgrade(empty, say=said.append)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(migrate) for _ in range(2)]:
            done.result()
    assert len([sentence for sentence in said if "0001: done" in sentence]) == 1


@pytest.mark.parametrize("name", ["ingester", "api", "retention"])
def test_a_service_refuses_an_older_schema(
    name: str, empty: str, service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = service_environment(POSTGRES_DSN=empty, API_PORT="0", KAFKA_TOPIC=unique())
    service = Service(name, environment, tmp_path)
    try:
        assert service.process.wait(180) == 1
    finally:
        service.stop()
    assert "no tables of the store; this version needs" in service.text
    assert "Traceback" not in service.text


@pytest.mark.parametrize("name", ["api", "retention"])
def test_a_service_runs_on_a_newer_schema(
    name: str, database: str, service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    upgrade(database, migrations=migrations_with_one_more(tmp_path))
    checked = command(database, "--check")
    assert checked.returncode == 0
    assert f"newer than this version's {newest()}" in checked.stdout
    assert "Nothing to do" in command(database).stdout
    service = Service(name, service_environment(API_PORT="0"), tmp_path)
    try:
        service.wait_ready()
        assert "schema_ahead" in service.text
    finally:
        service.stop()


def test_the_deadline_is_kept_while_postgres_is_away() -> None:
    started = time.monotonic()
    with pytest.raises(MigrationBusy, match="Postgres does not answer"):
        upgrade(f"postgresql://127.0.0.1:{free_port()}/nothing", wait_seconds=0.5)
    assert time.monotonic() - started < 60
