"""The data set as it was loaded: what a run before wrote into it is gone again; and counted."""

from datetime import timedelta

from sqlalchemy import delete, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from inference_store.index.partitions import drop, list_partitions
from inference_store.index.tables import erasing
from inference_store.query.counting import count_ended

from .plan import plan


async def restore(dsn: str, size: int, *, partitions: int | None = None) -> None:
    """Drop the spans that the population does not have, and the marks of erasure."""
    engine = create_engine(dsn, pool_size=2)
    try:
        loaded = {filled.span for filled in plan(size, partitions=partitions)}
        async with engine.begin() as connection:
            more = [
                span
                for span in await list_partitions(connection, closed=True)
                if span not in loaded
            ]
            marks = (await connection.execute(delete(erasing))).rowcount
        for span in more:
            await drop(engine, span)
        if marks:
            await _vacuum(engine)
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


async def _vacuum(engine: AsyncEngine) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        await connection.execute(text("VACUUM ANALYZE erasing"))
