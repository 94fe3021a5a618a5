"""Drops whole partitions."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.distribution import is_distributed
from inference_store.index.tables import partition_span

from .locks import lock_catalogue, unlock_catalogue
from .time_partition import TimePartition


async def drop(engine: AsyncEngine, partition: TimePartition, *, lock_timeout: str = "2s") -> None:
    """Drop the tables of a partition; repeatable, because a crash may follow any step.

    Order: detach (concurrently, so that readers go on; Citus cannot do so, and they wait), drop,
    then the catalogue's row. A reader that still has that row reads the parent without the
    partition, as it should.
    """
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        await connection.execute(text(f"SET lock_timeout = '{lock_timeout}'"))
        try:
            await lock_catalogue(connection, session=True)
            how = "" if await is_distributed(connection) else "CONCURRENTLY"
            for table in partition.tables:
                await _drop_one(connection, table, how)
            await connection.execute(
                partition_span.delete().where(partition_span.c.name == partition.name)
            )
        finally:
            await unlock_catalogue(connection)
            await connection.execute(text("RESET lock_timeout"))


async def _drop_one(connection: AsyncConnection, table: str, how: str) -> None:
    parent = table.rsplit("_p", 1)[0]
    state = await connection.execute(
        text(
            "SELECT inhdetachpending FROM pg_inherits"
            " WHERE inhrelid = to_regclass(:name) AND inhparent = to_regclass(:parent)"
        ),
        {"name": table, "parent": parent},
    )
    attached = state.first()
    if attached is not None:
        how = "FINALIZE" if attached[0] else how
        await connection.execute(text(f"ALTER TABLE {parent} DETACH PARTITION {table} {how}"))
    await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
