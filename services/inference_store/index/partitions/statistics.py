"""Gathers the statistics of partitions as they grow."""

from asyncpg.exceptions import (
    DeadlockDetectedError,
    LockNotAvailableError,
    UndefinedTableError,
)
from sqlalchemy import and_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of
from inference_store.index.distribution import is_distributed
from inference_store.index.tables import inference, partition_span

from .time_partition import TimePartition, list_partitions

# The partition was dropped or merged meanwhile, or is locked: it is tried another day.
_OF_TABLE = text("SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = :name")
_OF_SHARDS = text(
    "SELECT sum(result::bigint) FROM run_command_on_shards(:name,"
    " $$SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = '%s'::regclass$$) WHERE success"
)
BUSY = (UndefinedTableError, LockNotAvailableError, DeadlockDetectedError)


async def analyse(engine: AsyncEngine, *, growth: float = 2.0) -> int:
    """Gather statistics of open partitions whose rows have doubled; return their number.

    A partition without statistics is planned for one row: 60,000 rows then cost 42 ms, not 0.1.
    """
    async with engine.connect() as connection:
        partitions = await list_partitions(connection)
    done = 0
    for partition in partitions:
        try:
            done += await _analyse(engine, partition, growth)
        except DBAPIError as error:
            if not isinstance(cause_of(error), BUSY):
                raise
    return done


async def _analyse(engine: AsyncEngine, partition: TimePartition, growth: float) -> bool:
    here = and_(partition_span.c.name == partition.name, partition_span.c.state == "open")
    async with engine.begin() as connection:
        # One process at a time: a second one has nothing to do.
        locked = select(partition_span.c.analysed_rows).where(here)
        analysed_rows = await connection.scalar(
            locked.with_for_update(skip_locked=True, key_share=True)
        )
        rows = await _rows(connection, partition)
        if analysed_rows is None or rows < max(analysed_rows * growth, 1000):
            return False
        await connection.execute(text("SET LOCAL lock_timeout = '2s'"))
        for table in partition.tables:
            await connection.execute(text(f"ANALYZE {table}"))
        await connection.execute(partition_span.update().where(here).values(analysed_rows=rows))
    return True


async def _rows(connection: AsyncConnection, partition: TimePartition) -> int:
    """Return the approximate rows of a partition's inferences, from Postgres' statistics."""
    query = _OF_SHARDS if await is_distributed(connection) else _OF_TABLE
    rows = await connection.scalar(query, {"name": f"{inference.name}_{partition.name}"})
    return int(rows or 0)
