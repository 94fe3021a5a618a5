"""Chooses where queries run: on a read replica, or on the first Postgres if there is none."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import NONE, Settings, acquire_with
from inference_store.index.distribution import is_known_whole
from inference_store.platform.metrics import REPLICA_AWAY

# For so long an unavailable replica is not used; one query of that time tries it.
_LEFT_ALONE_SECONDS = 5.0
_log = structlog.get_logger()


class Replica:
    """Connections to read on.

    While the replica is unavailable the first Postgres answers, and is counted.
    """

    def __init__(self, first: AsyncEngine, replica: AsyncEngine | None = None) -> None:
        self._first = first
        self._replica = replica
        self._left_alone_until = 0.0

    @property
    def is_lagging(self) -> bool:
        """Check whether a read may be older than what was answered before."""
        return self._replica is not None

    @asynccontextmanager
    async def connect(self, settings: Settings = NONE) -> AsyncIterator[AsyncConnection]:
        """Open a connection for one query. Raises what the first Postgres raises.

        `settings`: the session settings that it has, unless the tables are, or may be, distributed.
        """
        connection = await self._open(settings)
        try:
            yield connection
        finally:
            await connection.close()

    async def _open(self, settings: Settings) -> AsyncConnection:
        replica = self._get_available()
        if replica is not None:
            try:
                connection = await _take_connection(replica, settings)
            except (OSError, DBAPIError) as error:
                self._left_alone_until = time.monotonic() + _LEFT_ALONE_SECONDS
                _log.warning(
                    "the read replica is unavailable", action="replica_away", error=str(error)
                )
            else:
                self._left_alone_until = 0.0
                return connection
        if self._replica is not None:
            REPLICA_AWAY.inc()
        return await _take_connection(self._first, settings)

    def _get_available(self) -> AsyncEngine | None:
        """Return the replica, unless it was unavailable a moment ago."""
        now = time.monotonic()
        if now < self._left_alone_until:
            return None
        if self._left_alone_until:  # this query tries it for the others
            self._left_alone_until = now + _LEFT_ALONE_SECONDS
        return self._replica

    async def describe_failure(self) -> str | None:
        """Return one sentence while the replica does not answer."""
        if self._replica is None:
            return None
        try:
            async with self._replica.connect() as connection:
                await connection.execute(text("SELECT 1 FROM registration LIMIT 1"))
        except (DBAPIError, PoolTimeout, OSError) as exc:
            return f"away, so that POSTGRES_DSN answers the questions: {exc}"[:500]
        return None


async def _take_connection(engine: AsyncEngine, settings: Settings) -> AsyncConnection:
    with acquire_with(settings if is_known_whole(engine.sync_engine) else NONE):
        return await engine.connect()
