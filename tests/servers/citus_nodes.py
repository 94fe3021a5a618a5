"""Citus on this machine: a coordinator and two workers, each a Postgres of its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .citus import Citus, make_cluster
from .memory import memory_folder
from .postgres import PostgresServer, installed
from .versions import MissingServer

WORKERS = 2
NODE = {
    "shared_preload_libraries": "citus",
    "citus.node_conninfo": "sslmode=disable",
    "citus.local_hostname": "127.0.0.1",
    # a transaction of a service may hold a connection on every worker, and be prepared there
    "max_connections": "300",
    "max_prepared_transactions": "300",
    "max_locks_per_transaction": "512",
}


def find_citus() -> Path:
    """Return the binaries of the newest Postgres with Citus. Raises MissingServer."""
    for version, binaries in installed():
        if Path(f"/usr/share/postgresql/{version}/extension/citus.control").exists():
            return binaries
    raise MissingServer("Citus is installed beside no Postgres here")


@contextmanager
def running_nodes(
    settings: Mapping[str, str], *, parent: str | None
) -> Iterator[Sequence[PostgresServer]]:
    """Yield a coordinator and its workers, which are not joined yet."""
    binaries = find_citus()
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                PostgresServer({**NODE, **settings}, binaries=binaries, parent=parent)
            )
            for _ in range(1 + WORKERS)
        ]


@contextmanager
def own_citus(settings: Mapping[str, str]) -> Iterator[Citus]:
    """Yield a cluster of three nodes for this run, with a template."""
    with (
        running_nodes(settings, parent=memory_folder()) as (coordinator, *workers),
        make_cluster(coordinator.dsn, [worker.dsn for worker in workers]) as citus,
    ):
        yield citus
