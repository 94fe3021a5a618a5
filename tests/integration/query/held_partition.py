"""A partition that nobody can read: another transaction locks it, so that a query runs out of time.

What comes before it in the order of the query is always found, on any machine.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime

import asyncpg
import pytest
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import TimePartition, list_partitions
from inference_store.query import deadline
from tests.integration.statements import SentStatement, record_statements
from tests.polling import until
from tests.stopped_clock import StoppedClock

_SHARDS = text(
    "SELECT nodename, nodeport, array_agg(shard_name) FROM citus_shards"
    " WHERE table_name = CAST(:name AS regclass) GROUP BY nodename, nodeport"
)
# It is needed to lock a shard; without Citus nothing reads this setting.
_ALLOWED = "SET LOCAL citus.enable_manual_changes_to_shards = on"
TablesByNode = Mapping[tuple[str, int], Sequence[str]]
"""Tables by the host and port of their node."""


@asynccontextmanager
async def hold_partition(
    engine: AsyncEngine, table: Table, at: datetime
) -> AsyncIterator[TimePartition]:
    """Lock the partition of a table in which this instant lies.

    On Citus lock its shards, each on its node: the coordinator locks all partitions for any
    statement.
    """
    async with engine.begin() as connection, AsyncExitStack() as stack:
        [span] = [
            partition
            for partition in await list_partitions(connection)
            if partition.lo <= at < partition.hi
        ]
        for (host, port), names in (
            await _find_tables(connection, f"{table.name}_{span.name}")
        ).items():
            url = engine.url.set(drivername="postgresql", host=host, port=port)
            other = await asyncpg.connect(url.render_as_string(hide_password=False))
            stack.push_async_callback(other.close)
            await stack.enter_async_context(other.transaction())
            await other.execute(_ALLOWED)
            await other.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
        yield span


async def _find_tables(connection: AsyncConnection, name: str) -> TablesByNode:
    if await is_distributed(connection):
        rows = await connection.execute(_SHARDS, {"name": name})
        return {(host, port): names for host, port, names in rows}
    url = connection.engine.url
    return {(str(url.host), url.port or 5432): [name]}


PATIENT_SECONDS = 300.0
"""The time of a query. Postgres measures it too, for each statement, and by its own clock."""
_WAITING = (
    "SELECT pid, query_start FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
# The parts of a statement wait on several nodes: name it by its start on the coordinator. A part
# that started before that is a remainder of the statement cancelled before it.
_WAITING_ON_CITUS = (
    "SELECT DISTINCT whole.global_pid, whole.query_start"
    " FROM citus_stat_activity whole JOIN citus_stat_activity part USING (global_pid)"
    " WHERE NOT whole.is_worker_query AND whole.datname = current_database()"
    " AND part.wait_event_type = 'Lock' AND part.query_start >= whole.query_start"
)
_LIMIT = re.compile(r"statement_timeout = '(\d+)'")


@asynccontextmanager
async def hold_partition_until_late(
    engine: AsyncEngine, table: Table, at: datetime
) -> AsyncIterator[TimePartition]:
    """Hold the partition of a table in which an instant lies; the time of queries stands still,
    but while one of their statements waits for it.

    The connections of the queries are acquired from now on.
    """
    clock = StoppedClock()
    async with hold_partition(engine, table, at) as span:
        with pytest.MonkeyPatch.context() as patch, record_statements(engine) as sent:
            patch.setattr(deadline, "time", clock)
            ending = asyncio.create_task(_end_waiting(engine, clock, sent))
            try:
                yield span
            finally:
                ending.cancel()
                with suppress(asyncio.CancelledError):
                    await ending


async def _end_waiting(
    engine: AsyncEngine, clock: StoppedClock, sent: Sequence[SentStatement]
) -> None:
    """Let the time of each statement that waits be over, and cancel it, as Postgres does then."""
    async with engine.connect() as connection:
        statement = _WAITING_ON_CITUS if await is_distributed(connection) else _WAITING
    address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    watcher = await asyncpg.connect(address)
    seen = set[tuple[object, ...]]()
    ended = set[tuple[object, ...]]()

    async def end() -> None:
        found = set(map(tuple, await watcher.fetch(statement)))
        # The nodes are not read at one instant: believe what is seen twice.
        for waiting in (found & seen) - ended:
            ended.add(waiting)
            clock.now += _find_limit(sent)
            await watcher.execute(f"SELECT pg_cancel_backend({waiting[0]})")
        seen.clear()
        seen.update(found)

    try:
        await until(end, lambda _: False, seconds=3600)  # until it is cancelled
    finally:
        await watcher.close()


def _find_limit(sent: Sequence[SentStatement]) -> float:
    """Return the seconds that the statement may take: the whole time if it has no limit."""
    for statement in reversed(sent):
        if limit := _LIMIT.search(statement.text):
            return int(limit[1]) / 1000
    return PATIENT_SECONDS
