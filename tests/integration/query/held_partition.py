"""A partition that nobody can read: another transaction locks it, so that a query runs out of time.

What comes before it in the order of the query is always found, on any machine.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

import asyncpg
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import TimePartition, list_partitions

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
