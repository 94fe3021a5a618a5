"""The fence: the advisory lock that orders writers against holds and erasures, see `mark/`."""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

FENCE: Final = 7_302_003


async def fence_shared(connection: AsyncConnection) -> None:
    """Let no eraser claim objects or close a span until this transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock_shared(FENCE)))


async def fence_exclusive(connection: AsyncConnection) -> None:
    """Wait for the writers' transactions, and hold the next ones, until this one ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(FENCE)))
