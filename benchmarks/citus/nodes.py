"""The population on a coordinator and two workers, kept: a folder, and a port, for each node.

It is loaded as on one node and then distributed, as an installation that grows does it.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.citus import NODE, WORKERS, find_citus, join
from tests.servers.fixtures import migrate
from tests.servers.postgres import Postgres, find_postgres

from benchmarks.query.dataset import DATABASE, SETTINGS, KeptPostgres, cache, loaded
from inference_store.index.distribution import DISTRIBUTED, REFERENCE, distribute

SHARDS = 32
_DONE = "seconds"
_LOADING = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
_LEAVES = "SELECT array_agg(relid::text) FROM pg_partition_tree('{}') WHERE isleaf"


class KeptNode(KeptPostgres):
    """It has the same port at each start: the nodes know each other by it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {**SETTINGS, **NODE, **settings})
        port = folder / "port"
        if port.exists():
            self.port = int(port.read_text())
            self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        port.write_text(str(self.port))


@contextmanager
def three_nodes(size: int) -> Iterator[tuple[str, float]]:
    """The coordinator's database, and how many seconds distributing took."""
    folder = _make_distributed(size)
    with _start_nodes(folder, {}) as nodes:
        yield nodes[0].dsn_of(DATABASE), float((folder / _DONE).read_text())


@contextmanager
def _start_nodes(folder: Path, settings: Mapping[str, str]) -> Iterator[list[KeptNode]]:
    with ExitStack() as stack:
        folders = [folder / str(number) for number in range(1 + WORKERS)]
        yield [stack.enter_context(KeptNode(node_folder, settings)) for node_folder in folders]


def _make_distributed(size: int) -> Path:
    if find_citus() != find_postgres():
        sys.exit("Citus is not installed beside the Postgres that the benchmarks use")
    before = loaded(size)
    folder = cache() / f"citus-{before.name}"
    if (folder / _DONE).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    coordinator = KeptNode(folder / "0", {})
    shutil.copytree(before / "data", coordinator.data)
    coordinator.give_folder(coordinator.data)
    with _start_nodes(folder, _LOADING) as nodes:
        coordinator, *workers = nodes
        dsns = [
            coordinator.dsn_of(DATABASE),
            *(node.create_database(DATABASE) for node in workers),
        ]
        seconds = _distribute(dsns)
        for node in nodes:
            node.execute("CHECKPOINT")
    (folder / _DONE).write_text(str(seconds))
    return folder


def _distribute(dsns: list[str]) -> float:
    """Move the rows to their shards; the seconds of `distribute` alone."""
    migrate(dsns[0])
    join(dsns)
    began = time.perf_counter()
    asyncio.run(distribute(dsns[0], shards=SHARDS, say=lambda said: print(said, flush=True)))
    seconds = time.perf_counter() - began
    database = Postgres(dsns[0])
    for table in (*DISTRIBUTED, *REFERENCE):
        database.execute(f"SELECT truncate_local_data_after_distributing_table('{table.name}')")
    for table in DISTRIBUTED:
        leaves = database.ask(_LEAVES.format(table.name)) or [table.name]
        database.execute(*(f"VACUUM (ANALYZE) {leaf}" for leaf in leaves))
    return seconds
