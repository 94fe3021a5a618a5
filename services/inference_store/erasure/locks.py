"""Advisory locks: the fence that orders writers against holds and erasures (`pending_deletions`),
and the one by which a single retention service leads.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

FENCE: Final = 7_302_003


async def fence_shared(connection: AsyncConnection) -> None:
    """Let no eraser claim objects or close a span until this transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock_shared(FENCE)))


async def fence_exclusive(connection: AsyncConnection) -> None:
    """Wait for the writers' transactions, and hold the next ones, until this one ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(FENCE)))


_LOCK = 7_302_004
RECONCILING: Final = 7_302_022


class LeaderElection:
    """A lock of a session of its own: it ends with the connection, and so with the process."""

    def __init__(self, connection: AsyncConnection, lock: int = _LOCK) -> None:
        self._connection = connection
        self._lock = lock

    async def take(self) -> bool:
        """Return whether nobody else has the lock; then it is ours until the connection ends."""
        return bool(await self._connection.scalar(select(func.pg_try_advisory_lock(self._lock))))

    async def confirm(self) -> None:
        """Raise the driver's error if the connection, and so the lock, is lost."""
        await self._connection.execute(select(1))


@asynccontextmanager
async def open_election(engine: AsyncEngine, lock: int = _LOCK) -> AsyncIterator[LeaderElection]:
    """Yield an election on a connection of its own."""
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        try:
            yield LeaderElection(connection, lock)
        finally:
            # in the pool its session would still hold the lock
            await connection.invalidate()
