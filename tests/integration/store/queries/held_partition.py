"""A partition that nobody can read: another transaction holds it, so that a query's time runs out.

Of all that lies nearer in the query's order the answer is certain, on any machine.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.partitions import Span, spans


@asynccontextmanager
async def held(engine: AsyncEngine, table: Table, at: datetime) -> AsyncIterator[Span]:
    """Hold the table's partition in which this instant lies."""
    async with engine.begin() as connection:
        [span] = [one for one in await spans(connection) if one.lo <= at < one.hi]
        await connection.exec_driver_sql(
            f"LOCK TABLE {table.name}_{span.name} IN ACCESS EXCLUSIVE MODE"
        )
        yield span
