"""`inference-store migrate` as a process, and services on an older or newer schema."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from inference_store.index import migration
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.index.schema import newest
from tests.servers.fixtures import MakeEnvironment, MakeTopic, unique
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.stopped_clock import StoppedClock
from tests.synthetic_migration import NEXT, copy_migrations_with_one_more
from tests.warm.process import run_command

LOCK_ID = 7_302_001


def run_migrate(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"INFERENCE_STORE_POSTGRES_DSN": dsn, "PATH": ""}
    return run_command("migrate", *arguments, environment=environment)


@pytest.fixture
def empty_database(postgres_server: Postgres) -> Iterator[str]:
    """Create a database without tables; yield its address."""
    name = unique()
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


def test_check_exits_with_1_unless_the_schema_is_current(empty_database: str) -> None:
    behind = run_migrate(empty_database, "--check")
    assert behind.returncode == 1
    assert "run `inference-store migrate`" in behind.stderr
    done = run_migrate(empty_database)
    assert done.returncode == 0, done.stderr
    assert f"The schema is {newest()}." in done.stdout
    assert "0001: The first schema" in done.stdout
    again = run_migrate(empty_database)
    assert "already: nothing to do" in again.stdout
    assert run_migrate(empty_database, "--check").returncode == 0


def test_makes_the_key_of_the_proxy_that_it_is_given(empty_database: str) -> None:
    environment = {"INFERENCE_STORE_POSTGRES_DSN": empty_database, "PATH": ""}
    for text, code in (("isk_registryread_" + "a" * 43, 0), ("short", 1)) * 2:
        given = {"INFERENCE_STORE_PROXY_REGISTRY_KEY": text}
        done = run_command("migrate", environment=environment | given)
        assert done.returncode == code, done.stderr
    assert "12 letters" in done.stderr
    listed = run_command("keys", "list", environment=environment).stdout
    assert listed.count("registryread") == 1
    assert "reader" in listed or "read" in listed


def test_check_waits_for_the_migration(empty_database: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(run_migrate, empty_database, "--check", "--wait-seconds", "300")
        upgrade(empty_database)
        assert waiting.result().returncode == 0


async def test_second_migration_waits_with_a_message_and_a_deadline(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await asyncpg.connect(empty_database)
    clock = StoppedClock()
    monkeypatch.setattr(migration, "time", clock)
    messages: list[str] = []

    def hear(message: str) -> None:
        messages.append(message)
        clock.now += 1

    try:
        await holder.execute("SELECT pg_advisory_lock($1)", LOCK_ID)
        with pytest.raises(MigrationBusy, match="Another migration still runs"):
            await asyncio.to_thread(upgrade, empty_database, wait_seconds=1, say=hear)
        assert len(messages) == 1
        assert f"Another migration runs (process {holder.get_server_pid()}" in messages[0]
        assert await holder.fetchval("SELECT to_regclass('inference')") is None
        second = asyncio.create_task(
            asyncio.to_thread(upgrade, empty_database, say=messages.append)
        )
        await asyncio.to_thread(
            wait_until, lambda: len(messages) > 1, seconds=180, what="its message"
        )
        await holder.execute("SELECT pg_advisory_unlock($1)", LOCK_ID)
        await second
        assert await holder.fetchval("SELECT to_regclass('inference')") is not None
    finally:
        await holder.close()


async def test_waits_for_locks_in_short_turns(database: str, tmp_path: Path) -> None:
    migrations = copy_migrations_with_one_more(tmp_path)
    reader = await asyncpg.connect(database)
    messages: list[str] = []
    try:
        reading = reader.transaction()
        await reading.start()
        await reader.execute("SELECT count(*) FROM inference")
        with pytest.raises(MigrationBusy, match="hold a lock"):
            await asyncio.to_thread(
                upgrade, database, wait_seconds=0, say=messages.append, migrations=migrations
            )
        messages.clear()
        task = asyncio.to_thread(upgrade, database, say=messages.append, migrations=migrations)
        migrating = asyncio.create_task(task)
        await asyncio.to_thread(
            wait_until, lambda: "again in" in " ".join(messages), seconds=180, what="a try"
        )
        await reading.rollback()
        await migrating
        assert messages[-1] == f"The schema is {NEXT}."
    finally:
        await reader.close()


def test_concurrent_migrations_run_once(empty_database: str) -> None:
    messages: list[str] = []
    started = threading.Barrier(2)

    def migrate() -> None:
        started.wait()
        upgrade(empty_database, say=messages.append)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(migrate) for _ in range(2)]:
            done.result()
    assert len([sentence for sentence in messages if "0001: done" in sentence]) == 1


def test_services_refuse_an_older_schema(
    empty_database: str, service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = service_environment(
        POSTGRES_DSN=empty_database, API_PORT="0", KAFKA_TOPIC=unique()
    )
    names = ("ingester", "api", "retention")
    for service in [Service(name, environment, tmp_path) for name in names]:
        try:
            assert service.process.wait(300) == 1, service.name
        finally:
            service.stop()
        assert "no tables of the store; this version needs" in service.text, service.name
        assert "Traceback" not in service.text, service.name


def test_services_run_on_a_newer_schema(
    database: str, service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
) -> None:
    upgrade(database, migrations=copy_migrations_with_one_more(tmp_path))
    checked = run_migrate(database, "--check")
    assert checked.returncode == 0
    assert f"newer than this version's {newest()}" in checked.stdout
    assert "Nothing to do" in run_migrate(database).stdout
    environment = service_environment(API_PORT="0", KAFKA_TOPIC=topic())
    for name in ("api", "retention", "ingester"):
        with Service(name, environment, tmp_path) as service:
            service.wait_ready()
            assert "schema_ahead" in service.text, name


def test_a_database_that_is_not_there_ends_it_at_once(database: str) -> None:
    away = run_migrate(f"postgresql://127.0.0.1:{free_port()}/nothing", "--check")
    assert away.returncode == 3
    assert "Postgres does not answer" in away.stderr
    assert "Traceback" not in away.stderr
    missing = run_migrate(database.rpartition("/")[0] + "/nowhere")
    assert missing.returncode == 3
    assert ": the database nowhere does not exist: create it (createdb nowhere)" in missing.stderr
    assert "again in" not in missing.stdout


def test_keeps_the_deadline_while_postgres_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = StoppedClock(), list[str]()
    monkeypatch.setattr(migration, "time", clock)

    def hear(message: str) -> None:
        said.append(message)
        clock.now += 1

    with pytest.raises(MigrationBusy, match="Postgres does not answer"):
        upgrade(f"postgresql://127.0.0.1:{free_port()}/nothing", wait_seconds=1, say=hear)
    assert [message.partition("; ")[2] for message in said] == ["again in 0.5 s, for 1 s more."]
