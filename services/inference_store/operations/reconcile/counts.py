"""Compares the number of inferences with the offset accounting."""

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erased_total, inference, kafka_partition, reconciliation


async def count_against_accounting(engine: AsyncEngine) -> dict[str, int]:
    """Count inferences stored by the offset accounting, rebuilt and erased since, and indexed now.

    The difference is 0 if nothing is lost. All numbers are of one moment.
    """
    async with engine.connect() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        stored = await connection.scalar(select(func.sum(kafka_partition.c.stored)))
        rebuilt = await connection.scalar(
            select(func.sum(reconciliation.c.counts["rebuilt"].as_integer()))
        )
        erased = await connection.scalar(select(erased_total.c.inferences))
        indexed = await connection.scalar(select(func.count()).select_from(inference))
    counts = {
        "stored": int(stored or 0),
        "rebuilt": int(rebuilt or 0),
        "erased": int(erased or 0),
        "indexed": int(indexed or 0),
    }
    expected = counts["stored"] + counts["rebuilt"] - counts["erased"]
    return {**counts, "difference": counts["indexed"] - expected}
