"""Counts of what an erasure has left because of holds."""

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasure_held


async def count_held(connection: AsyncConnection, number: UUID) -> int:
    """Return how many inferences, inputs and quarantined events an erasure has left because of
    holds."""
    query = select(func.count()).select_from(erasure_held).where(erasure_held.c.erasure == number)
    return int(await connection.scalar(query) or 0)


async def count_held_by_hold(connection: AsyncConnection, number: UUID) -> dict[UUID, int]:
    """Return the same by the hold that protects them."""
    here = erasure_held.c
    query = select(here.hold, func.count()).where(here.erasure == number).group_by(here.hold)
    return {row[0]: row[1] for row in await connection.execute(query.order_by(here.hold))}
