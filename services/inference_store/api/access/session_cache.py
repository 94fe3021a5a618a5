"""Caches sessions of Postgres, and reads them again after two seconds.

A session that was ended through another replica works here for so long, and no longer. A page that
looks whether its session goes on is answered by what is a quarter of a second old at most.
"""

from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.sessions import Session, hash_id
from inference_store.index import web_sessions
from inference_store.index.web_sessions import TOUCH_SECONDS

from .fresh_cache import FRESH_SECONDS, FreshCache

_log = structlog.get_logger()


class SessionCache:
    """The sessions that were used lately."""

    def __init__(self, engine: AsyncEngine, *, idle_seconds: float) -> None:
        self._engine = engine
        self._idle_seconds = idle_seconds
        self._known = FreshCache(self._read)

    def is_in_use(self, id: str) -> bool:
        """Return whether it is a session that was used lately."""
        return self._known.peek(hash_id(id)) is not None

    async def find(self, id: str, *, fresh_seconds: float = FRESH_SECONDS) -> Session | None:
        """Return the session with an id; None if there is none, or it has ended."""
        session = await self._known.get(hash_id(id), fresh_seconds=fresh_seconds)
        return session if session is not None and session.is_live(datetime.now(UTC)) else None

    async def touch(self, session: Session) -> None:
        """Keep a session alive because it is used."""
        if datetime.now(UTC) - session.used_at < timedelta(seconds=TOUCH_SECONDS):
            return
        try:
            async with self._engine.begin() as connection:
                seconds = self._idle_seconds
                await web_sessions.touch(connection, session.id_hash, idle_seconds=seconds)
        except DBAPIError as exc:  # read-only for a while: the session goes on all the same
            _log.warning("use not noted", action="session_touch", error=type(exc.orig).__name__)
        self.forget(session.id_hash)

    def forget(self, id_hash: bytes) -> None:
        """Read a session again at its next use, because it was changed here."""
        self._known.forget(id_hash)

    async def _read(self, id_hash: bytes) -> Session | None:
        async with self._engine.connect() as connection:
            return await web_sessions.find(connection, id_hash)
