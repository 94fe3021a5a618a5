"""The data set, kept: a Postgres of its own whose data stay in a cache folder.

Loading ten million takes the better part of an hour, asking them a few minutes. What is kept is
known by the population's version, its size and the schema: until a release, the
first migration makes what the tables say, and a database that was made before cannot be migrated.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.servers.fixtures import migrate
from tests.servers.postgres import PostgresServer, find_postgres
from tests.servers.process import LeashedProcess

from inference_store.index import tables
from inference_store.index.database import create_engine
from inference_store.index.partitions import drop, list_partitions
from inference_store.index.schema import MIGRATIONS
from inference_store.query.counting import count_ended

from .load import load, plan
from .population import MODELS, VERSION

CACHE = "INFERENCE_STORE_BENCH_CACHE"
DATABASE = "bench"
SIZES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
_LOADED = "loaded"
SETTINGS = {
    "shared_buffers": "2GB",
    "effective_cache_size": "12GB",
    "max_wal_size": "4GB",
    "random_page_cost": "1.1",
    "effective_io_concurrency": "64",
}
# No log of what can be loaded again, and nothing that runs beside it.
_LOADING = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "checkpoint_timeout": "30min",
    "max_wal_size": "2GB",
}


class KeptPostgres(PostgresServer):
    """A Postgres whose folder is there before it starts and after it ends."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        shutil.rmtree(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self.folder = folder

    def close(self) -> None:
        """Stop it; its data stay."""
        self.stop()

    def _run(
        self, command: list[str], *, environment: dict[str, str] | None = None, user: str = ""
    ) -> LeashedProcess:
        # As its superior's, but nobody removes the folder when this process is killed.
        return LeashedProcess(
            command,
            log=self.folder / f"{self.name}.log",
            environment={**os.environ, **(environment or {})},
            cwd=self.folder,
            user=user,
            last_signal=self.last_signal,
        )


def cache() -> Path:
    """Return where data sets are kept; as root where Postgres' own user can come to as well."""
    if folder := os.environ.get(CACHE):
        return Path(folder)
    if os.geteuid() == 0:
        return Path("/var/tmp/inference-store-bench")
    return Path.home() / ".cache" / "inference-store" / "bench"


def folder_of(kind: str) -> Path:
    """Return the folder of one data set of this version's schema."""
    parent = find_postgres().parent.name
    version = parent if parent.isdigit() else "wheel"
    paths = [*MIGRATIONS.rglob("*"), *Path(tables.__file__).parent.glob("*")]
    texts = (path.read_bytes() for path in sorted(paths) if path.suffix in {".py", ".sql"})
    schema = hashlib.sha256(b"".join(texts)).hexdigest()[:8]
    return cache() / f"v{VERSION}-{kind}-postgres-{version}-schema-{schema}"


@contextmanager
def dataset(size: int) -> Iterator[tuple[PostgresServer, str]]:
    """A server with the population, and the database's address; loaded if it is not there."""
    with KeptPostgres(loaded(size), SETTINGS) as server:
        dsn = server.dsn_of(DATABASE)
        migrate(dsn)
        yield server, dsn


def loaded(size: int) -> Path:
    """The folder of a data set, which is loaded if it is not there, in place of one of another
    schema: outside of any event loop."""
    folder = folder_of(f"{size}")
    loaded_into(folder, size)
    return folder


def loaded_into(
    folder: Path, size: int, *, models: Sequence[str] = MODELS, objects: bool = True
) -> None:
    """Load a data set into a folder, unless it is there: outside of any event loop. See `load`."""
    if (folder / _LOADED).exists():
        return
    for outdated in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        shutil.rmtree(outdated)
    print(f"loading {size:,} inferences into {folder} …", flush=True)
    with KeptPostgres(folder, {**SETTINGS, **_LOADING}) as server:
        dsn = server.create_database(DATABASE)
        migrate(dsn)
        load(dsn, size, models=models, objects=objects)
        server.execute("CHECKPOINT")
    (folder / _LOADED).touch()


async def restore(dsn: str, size: int) -> None:
    """Drop the spans that the population does not have: a run before wrote them."""
    engine = create_engine(dsn, pool_size=2)
    try:
        kept = {filled.span for filled in plan(size)}
        async with engine.connect() as connection:
            spans = await list_partitions(connection, closed=True)
        for span in spans:
            if span not in kept:
                await drop(engine, span)
    finally:
        await engine.dispose()


async def count_partitions(dsn: str) -> None:
    """Count all partitions but the newest, as the retention service has them at rest."""
    engine = create_engine(dsn, pool_size=2)
    try:
        async with engine.connect() as connection:
            newest = (await list_partitions(connection))[0]
        while not await count_ended(engine, seconds=60, before=newest.lo, quiet=timedelta()):
            print("counting the partitions …", flush=True)
    finally:
        await engine.dispose()
