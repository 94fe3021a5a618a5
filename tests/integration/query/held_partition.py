"""A partition that nobody can read: another transaction holds it, so that a query's time runs out.

Of all that lies nearer in the query's order the answer is certain, on any machine.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

import asyncpg
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import Span, spans

_SHARDS = text(
    "SELECT nodename, nodeport, array_agg(shard_name) FROM citus_shards"
    " WHERE table_name = CAST(:name AS regclass) GROUP BY nodename, nodeport"
)
# To lock a shard; without Citus it is a setting that nobody reads.
_ALLOWED = "SET LOCAL citus.enable_manual_changes_to_shards = on"
Held = Mapping[tuple[str, int], Sequence[str]]
"""Tables by the host and port of their node."""


@asynccontextmanager
async def held(engine: AsyncEngine, table: Table, at: datetime) -> AsyncIterator[Span]:
    """Hold the table's partition in which this instant lies.

    On Citus its shards, each on its node: the coordinator locks all partitions for any statement.
    """
    async with engine.begin() as connection, AsyncExitStack() as stack:
        [span] = [one for one in await spans(connection) if one.lo <= at < one.hi]
        for (host, port), names in (await _held(connection, f"{table.name}_{span.name}")).items():
            url = engine.url.set(drivername="postgresql", host=host, port=port)
            other = await asyncpg.connect(url.render_as_string(hide_password=False))
            stack.push_async_callback(other.close)
            await stack.enter_async_context(other.transaction())
            await other.execute(_ALLOWED)
            await other.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
        yield span


async def _held(connection: AsyncConnection, name: str) -> Held:
    if await is_distributed(connection):
        found = await connection.execute(_SHARDS, {"name": name})
        return {(host, port): names for host, port, names in found}
    url = connection.engine.url
    return {(str(url.host), url.port or 5432): [name]}
