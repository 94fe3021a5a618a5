"""The age of the oldest thing that should be gone and is not: what shows deletion that is late."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.tables import erasure

from . import own_records
from .erasures import ENDED


async def seconds(connection: AsyncConnection, keep: Mapping[str, float]) -> float:
    """Of erasures since they were asked for, of our own records since their retention ended
    (`keep`: seconds by setting); 0: nothing is overdue."""
    return max(
        await _erasures(connection), await own_records.overdue_seconds(connection, keep), 0.0
    )


async def _erasures(connection: AsyncConnection) -> float:
    """Also those that failed: what they name is still there. What a hold keeps is not overdue."""
    age = func.extract("epoch", func.now() - func.min(erasure.c.requested_at))
    over = (*ENDED, "partly_held")
    found = await connection.scalar(select(age).where(erasure.c.state.not_in(over)))
    return float(found or 0)
