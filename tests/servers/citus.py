"""Citus for the tests: a coordinator, its workers, and databases on all of them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from .machine import memory_folder
from .postgres import Postgres, PostgresServer, installed
from .versions import MissingServer
from .waiting import wait_until

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


_WORKERS = (
    "SELECT coalesce(array_agg(nodename || ':' || nodeport ORDER BY nodename, nodeport), '{}')"
    " FROM pg_dist_node WHERE groupid <> 0"
)
_CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'"
_DISCONNECTED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"
    " AND pid <> pg_backend_pid()"
)


class Citus(Postgres):
    """A coordinator and its workers; a single node has none.

    `template` is the name of a database with the newest schema whose tables are distributed.
    """

    def __init__(self, dsn: str, workers: Sequence[str], template: str) -> None:
        super().__init__(dsn)
        self.workers = tuple(workers)
        self.template = template

    @property
    def nodes(self) -> list[Postgres]:
        """The coordinator and the workers."""
        return [Postgres(self.dsn), *map(Postgres, self.workers)]

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database on every node, and return its address on the coordinator.

        A copy of `self.template` is a cluster too: a node finds the shards of another one in the
        database of the same name.
        """
        make = partial(Postgres.create_database, name=name, template=template)
        with ThreadPoolExecutor() as threads:
            addresses = list(threads.map(make, self.nodes))
        if template == "template1":
            join(addresses)
        return addresses[0]

    def drop_database(self, name: str) -> None:
        with ThreadPoolExecutor() as threads:
            # a process of Citus may just be starting in it, and needs time to end
            list(threads.map(partial(Postgres.drop_database, name=name), self.nodes))


@contextmanager
def find_cluster(dsn: str) -> Iterator[Citus]:
    """Yield the cluster of a coordinator's database, with a template for this run."""
    coordinator = Postgres(dsn)
    is_citus = coordinator.ask("SELECT to_regclass('pg_dist_node') IS NOT NULL")
    nodes = coordinator.ask(_WORKERS) if is_citus else []
    with make_cluster(dsn, [_move_to_node(dsn, node) for node in nodes]) as citus:
        yield citus


@contextmanager
def make_cluster(dsn: str, workers: Sequence[str]) -> Iterator[Citus]:
    citus = Citus(dsn, workers, f"template-{uuid4()}")
    distribute_tables(citus.create_database(citus.template))
    for node in citus.nodes:
        _close(node, citus.template)
    try:
        yield citus
    finally:
        citus.drop_database(citus.template)


def distribute_tables(dsn: str) -> None:
    """Migrate a database of a Citus cluster and distribute its tables, into few shards."""
    from inference_store.index.distribution import distribute  # noqa: PLC0415  (few tests need it)
    from inference_store.index.migration import upgrade  # noqa: PLC0415

    # In its own thread, since this one may have a running loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(upgrade, dsn).result()
        work = distribute(dsn, shards=4, say=lambda _: None)
        thread.submit(asyncio.run, work).result()


def _move_to_node(dsn: str, node: str) -> str:
    """Return the address of the same database on another node, given as host:port."""
    address = urlsplit(dsn)
    user, at, _ = address.netloc.rpartition("@")
    return address._replace(netloc=f"{user}{at}{node}").geturl()


def join(addresses: Sequence[str]) -> None:
    """Join the databases of one name on all nodes to a cluster; the first is the coordinator."""
    for address in addresses:
        Postgres(address).execute("CREATE EXTENSION citus")
    if len(addresses) > 1:
        first, *workers = [urlsplit(address) for address in addresses]
        Postgres(addresses[0]).execute(
            f"SELECT citus_set_coordinator_host('{first.hostname}', {first.port})",
            *(f"SELECT citus_add_node('{worker.hostname}', {worker.port})" for worker in workers),
        )


def _close(node: Postgres, name: str) -> None:
    """Close a database to all connections, even those of Citus: a template must be unused."""
    node.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false', _DISCONNECTED.format(name))
    wait_until(lambda: node.ask(_CONNECTED.format(name)) == 0, seconds=60, what="nobody is in it")


@contextmanager
def own_citus(settings: Mapping[str, str]) -> Iterator[Citus]:
    """Yield a cluster of three nodes for this run, with a template."""
    with (
        running_nodes(settings, parent=memory_folder()) as (coordinator, *workers),
        make_cluster(coordinator.dsn, [worker.dsn for worker in workers]) as citus,
    ):
        yield citus
