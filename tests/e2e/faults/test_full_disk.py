"""Postgres with a full disk: the ingester waits and says so; with room again nothing was lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.e2e.faults import traffic
from tests.producer import Capture
from tests.servers.fixtures import migrate, unique
from tests.servers.machine import SmallDisk
from tests.servers.postgres import PostgresServer
from tests.service_process import Service
from tests.transactions import opened

pytestmark = pytest.mark.small_disk
# A write that found no room at all, and one that found room for a part of its page.
_NO_SPACE = ("No space left on device", "wrote only")
# Segments of the log that one batch or two fill; no checkpoint takes old ones for new ones.
_SMALL_SEGMENTS = ["--wal-segsize=1"]
_SETTINGS = {"max_wal_size": "1GB", "min_wal_size": "2MB", "checkpoint_timeout": "1h"}


@dataclass(frozen=True)
class DiskCase:
    """The folder of the server that is on the small disk, and what then becomes of Postgres."""

    folder: str
    log_apart: bool
    panics: bool | None  # None: whichever fills up first
    leave_bytes: int = 64 * 1024


DISKS = {
    "everything": DiskCase("data", log_apart=False, panics=None),
    "tables": DiskCase("data", log_apart=True, panics=False),
    "write-ahead log": DiskCase("log", log_apart=True, panics=True),
    # Less than one page of a table: what a small batch writes would fit into more.
    "temporary tables": DiskCase("temporary", log_apart=False, panics=False, leave_bytes=4096),
}


@pytest.fixture(params=DISKS)
def disk_case(request: pytest.FixtureRequest) -> DiskCase:
    return DISKS[request.param]


@pytest.fixture
def server(disk_case: DiskCase) -> Iterator[tuple[PostgresServer, SmallDisk]]:
    """A Postgres of which a part is on a small disk, which has room at first."""
    initdb = list(_SMALL_SEGMENTS)
    postgres = PostgresServer(_SETTINGS, initdb=initdb)
    if disk_case.log_apart:
        initdb.append(f"--waldir={postgres.folder / 'log'}")
    with ExitStack() as stack:
        stack.callback(postgres.close)
        disk = stack.enter_context(
            SmallDisk(postgres.folder / disk_case.folder, user=postgres.user)
        )
        stack.callback(postgres.stop)
        postgres.start()
        yield postgres, disk


@pytest.fixture
def full_environment(
    environment: dict[str, str], server: tuple[PostgresServer, SmallDisk], disk_case: DiskCase
) -> dict[str, str]:
    postgres, disk = server
    name = unique()
    dsn = postgres.create_database(name)
    if disk_case.folder == "temporary":
        postgres.execute(
            f"CREATE TABLESPACE small LOCATION '{disk.folder}'",
            f"ALTER DATABASE \"{name}\" SET temp_tablespaces = 'small'",
        )
    migrate(dsn)
    return environment | {"INFERENCE_STORE_POSTGRES_DSN": dsn}


@pytest.fixture
async def own_engine(full_environment: dict[str, str]) -> AsyncIterator[AsyncEngine]:
    async with opened(full_environment["INFERENCE_STORE_POSTGRES_DSN"]) as opened_engine:
        yield opened_engine


async def test_a_full_disk(
    disk_case: DiskCase,
    server: tuple[PostgresServer, SmallDisk],
    full_environment: dict[str, str],
    published: traffic.Published,
    many: list[Capture],
    own_engine: AsyncEngine,
    tmp_path: Path,
) -> None:
    postgres, disk = server
    published.engine = own_engine
    service = Service("ingester", full_environment, tmp_path)
    try:
        await asyncio.to_thread(service.wait_ready)
        await published.publish(many[:100], again=20)
        await traffic.wait_until_drained(own_engine, records=published.records)
        await own_engine.dispose()  # its connections may not outlive a crash
        disk.leave(disk_case.leave_bytes)
        coming = [*many[100:], *traffic.make_captures(range(20_000, 20_600), prefix=unique())]
        load = asyncio.create_task(published.under_load(coming, chunk=100))
        reason = await traffic.wait_for_tries(service, "postgres")
        check_how_it_failed(disk_case, postgres, reason)
        disk.grow()
        await asyncio.to_thread(postgres.start_if_ended)
        await load
        await published.check_ingested()
        await asyncio.to_thread(service.wait_ready)
        traffic.check_it_did_not_spin(service)
    finally:
        print(service.text[-6000:])
        service.stop()


def check_how_it_failed(case: DiskCase, postgres: PostgresServer, reason: str) -> None:
    """The disk was the reason, and Postgres said so itself."""
    log = (postgres.folder / "postgres.log").read_text(errors="replace")
    assert any(message in log for message in _NO_SPACE)
    if case.panics is not None:
        assert ("PANIC" in log) == case.panics
    if case.panics is False:
        assert any(message in reason for message in _NO_SPACE)
