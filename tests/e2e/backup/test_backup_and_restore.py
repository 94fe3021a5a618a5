"""A backup, life after it, and a new Postgres and object store that read on from the backup."""

import asyncio
import getpass
import io
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import FINAL, find_erasure
from inference_store.index.accounting import Outcome
from inference_store.index.database import create_engine
from inference_store.index.tables import metadata_key, registration
from tests.e2e.faults.traffic import (
    Published,
    check_nothing_waits,
    check_partitions,
    check_rows,
    counted,
    make_captures,
    uid_of,
)
from tests.integration import erasure_requests
from tests.polling import until
from tests.producer import START, Capture, Producer, capture
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import MakeTopic, migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3, MinioServer
from tests.servers.postgres import Postgres, PostgresServer, find_postgres
from tests.service_process import Service
from tests.transactions import fetch, transact
from tests.warm.process import run_command

pytestmark = pytest.mark.real_minio
MODEL = "people-detector"
ERASED_BEFORE, ERASED_AFTER = range(5), range(10, 15)


@pytest.fixture(scope="module")
def target_s3() -> Iterator[MinioServer]:
    """The object store of the new place."""
    with MinioServer() as server:
        yield server


@dataclass
class Site:
    environment: dict[str, str]
    engine: AsyncEngine
    bucket: str
    folder: Path

    async def start(self, opened: AsyncExitStack) -> None:
        for name in ("ingester", "retention"):
            service = Service(name, self.environment, self.folder)
            opened.callback(service.stop)
            await asyncio.to_thread(service.wait_ready)

    async def read_all(self, records: int, **counts: int) -> None:
        """Wait until every record is in the books; so many in each state."""
        result = await until(
            lambda: counted(self.engine), lambda result: result.total() >= records, seconds=180
        )
        expected = {Outcome(name): count for name, count in counts.items()}
        assert {state: n for state, n in result.items() if n} == expected

    async def erase(self, some: Iterable[Capture]) -> None:
        """Ask for an erasure, and wait until the retention service has done it."""
        uids = [uid_of(captured, self.bucket) for captured in some]
        async with self.engine.begin() as connection:
            query = select(registration.c.model).where(registration.c.model_id == MODEL)
            model = (await connection.execute(query)).scalar_one()
            erasure = await erasure_requests.request_erasure(connection, model=model, uids=uids)

        async def state() -> str:
            result = await transact(self.engine, find_erasure, erasure.id)
            assert result is not None
            return result.state

        assert await until(state, lambda now: now in FINAL, seconds=180) == "deleted"

    async def check(self, some: Iterable[Capture]) -> None:
        """Check that exactly these are stored, whole, in partitions that the catalogue knows."""
        await transact(
            self.engine, check_rows, {uid_of(captured, self.bucket) for captured in some}
        )
        await transact(self.engine, check_nothing_waits)
        await transact(self.engine, check_partitions)


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def live(old: Site, published: Published, take: Callable[[], Awaitable[None]]) -> None:
    """Publish events and erase, before the backup, while it is taken, and after it."""
    first = make_captures(range(200))
    async with AsyncExitStack() as services:
        await old.start(services)
        await published.producer.put_all(first)
        await published.publish(first)
        await old.read_all(200, stored=200)
        await old.erase(first[n] for n in ERASED_BEFORE)
        load = asyncio.create_task(published.under_load(make_captures(range(200, 500))))
        await until(lambda: counted(old.engine), lambda result: result.total() > 250, seconds=180)
        await take()
        await load
        # what the backup knows nothing of
        await published.under_load(make_captures(range(500, 600)))
        await old.erase(first[n] for n in ERASED_AFTER)
        await old.read_all(published.records, stored=600, duplicate=80)
    gone = {*ERASED_BEFORE, *ERASED_AFTER}
    await old.check(captured for captured in published.captures if captured.number not in gone)


async def live_again(new: Site, published: Published, s3: S3) -> None:
    """Check the restored site: nothing is missing or doubled, and later erasures are repeated."""
    before = [captured for captured in published.captures if captured.number in ERASED_BEFORE]
    gone = [captured for captured in published.captures if captured.number in ERASED_AFTER]
    kept_captures = [
        captured for captured in published.captures if captured.number not in ERASED_BEFORE
    ]
    # The ledger has the end of an erasure that the backup knows nothing of.
    replayed = await asyncio.to_thread(run_command, "ledger", "replay", environment=new.environment)
    assert replayed.returncode == 0, replayed.stderr
    async with AsyncExitStack() as services:
        await new.start(services)
        await new.read_all(published.records, stored=600, duplicate=80)
        # What was erased after the backup is back: its rows, and in the copy its objects.
        await new.check(kept_captures)
        assert count_objects(s3, new.bucket, gone) == 3 * len(gone)
        await new.erase(gone)
        assert count_objects(s3, new.bucket, gone) == 0
        kept_captures = [captured for captured in kept_captures if captured not in gone]
        await new.check(kept_captures)
        # What was erased before it does not come back, nor is anything stored twice.
        await published.publish(before)
        await published.publish(kept_captures[:20])
        # New models, keys and times get numbers and partitions that are free.
        more = [make_later_capture(number) for number in range(1000, 1020)]
        await Producer(new.environment, "").put_all(more)
        await published.publish(more)
        counts = {"stored": 620, "duplicate": 100, "erased_again": len(before)}
        await new.read_all(published.records, **counts)
    result = await list_names(new.engine)
    assert result["models"] == [MODEL, "another-model"]
    assert "new_key" in result["keys"]


def make_later_capture(number: int) -> Capture:
    """Make a capture of a new model, with a new key, at a time that has no partition yet."""
    return capture(
        number,
        model_id="another-model",
        received_at=START - timedelta(days=40, milliseconds=-number),
        metadata=[{"key": "new_key", "type": "int", "value": "1"}],
    )


def count_objects(s3: S3, bucket: str, some: Iterable[Capture]) -> int:
    there = {item.object_name for item in s3.client().list_objects(bucket, recursive=True)}
    return len(there & {key for captured in some for key in captured.blobs})


async def list_names(engine: AsyncEngine) -> dict[str, Any]:
    """The models in order of their integers, and every key; each integer once."""
    models = await fetch(engine, select(registration).order_by("model"))
    keys = await fetch(engine, select(metadata_key))
    for rows in (models, keys):
        assert len({row[0] for row in rows}) == len(rows)
    return {"models": [row.model_id for row in models], "keys": {row.name for row in keys}}


def run(name: str, *arguments: str) -> None:
    command = [str(find_postgres() / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"


class Dump:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "store.dump"

    def take(self, _server: PostgresServer, dsn: str) -> None:
        run("pg_dump", "--format=custom", f"--file={self._file}", dsn)

    def restore(self, server: PostgresServer, name: str) -> str:
        server.start()
        dsn = Postgres.create_database(server, name)
        run("pg_restore", "--exit-on-error", f"--dbname={dsn}", str(self._file))
        return dsn


class BaseBackup:
    """pg_basebackup of the whole server, and another server on it."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "base"

    def take(self, server: PostgresServer, _dsn: str) -> None:
        user = urlsplit(server.dsn).username or getpass.getuser()
        where = ("--host=127.0.0.1", f"--port={server.port}", f"--username={user}")
        run("pg_basebackup", *where, f"--pgdata={self._data}", "--checkpoint=fast")

    def restore(self, server: PostgresServer, name: str) -> str:
        data = server.folder / "data"
        shutil.copytree(self._data, data)
        data.chmod(0o700)
        server.give_folder(data)
        server.start()
        return server.dsn_of(name)


METHODS: dict[str, type[Dump | BaseBackup]] = {"pg_dump": Dump, "pg_basebackup": BaseBackup}


def mirror(source: S3, target: S3, bucket: str) -> int:
    """Copy what a bucket's copy does not have yet, as `mc mirror` does; how many objects."""
    here, there = source.client(), target.client()
    if not there.bucket_exists(bucket):
        there.make_bucket(bucket)
    copied_names = {item.object_name for item in there.list_objects(bucket, recursive=True)}
    copied = 0
    for item in here.list_objects(bucket, recursive=True):
        if item.object_name not in copied_names:
            data = here.get_object(bucket, item.object_name).read()
            there.put_object(bucket, item.object_name, io.BytesIO(data), len(data))
            copied += 1
    return copied


@pytest.mark.parametrize("method", METHODS)
async def test_a_restored_store_reads_on_and_misses_nothing(
    method: str,
    own_postgres: PostgresServer,
    kafka_server: Kafka,
    minio_server: S3,
    target_s3: MinioServer,
    bucket: str,
    topic: MakeTopic,
    tmp_path: Path,
    opened: AsyncExitStack,
) -> None:
    name = unique()
    changes = {"KAFKA_TOPIC": topic(2), "KAFKA_GROUP": unique(), "INGESTER_BATCH_EVENTS": "50"}

    def site(dsn: str, s3: S3, folder: str) -> Site:
        engine = create_engine(dsn)
        opened.push_async_callback(engine.dispose)
        (tmp_path / folder).mkdir()
        environment = environment_of(dsn, kafka_server, s3, bucket, **changes)
        return Site(environment, engine, bucket, tmp_path / folder)

    dsn = own_postgres.create_database(name)
    await asyncio.to_thread(migrate, dsn)
    old = site(dsn, minio_server, "old")
    producer = await opened.enter_async_context(Producer(old.environment, changes["KAFKA_TOPIC"]))
    published = Published(producer, old.engine, bucket)
    backup = METHODS[method](tmp_path)

    async def take() -> None:
        # The database first: what its rows point to is then in the copy of the bucket.
        await asyncio.to_thread(backup.take, own_postgres, dsn)
        await asyncio.to_thread(mirror, minio_server, target_s3, bucket)

    await live(old, published, take)
    await asyncio.to_thread(mirror, minio_server, target_s3, bucket)
    new_server = PostgresServer()
    opened.callback(new_server.close)
    new = site(await asyncio.to_thread(backup.restore, new_server, name), target_s3, "new")
    assert 250 < (await counted(new.engine)).total() < published.records
    await live_again(new, published, target_s3)
