"""Caches API keys of Postgres, and reads them again after two seconds.

A key that was revoked through another replica works here for so long, and no longer.
"""

from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Caller
from inference_store.access.credentials import HashedApiKey, Secret, id_of
from inference_store.index import api_keys
from inference_store.index.api_keys import TOUCH_SECONDS

from .fresh_cache import FRESH_SECONDS, FreshCache

_log = structlog.get_logger()


class ApiKeyCache:
    """The keys that were used lately; made-up ids of strangers do not push them out."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._entries = FreshCache(self._read)

    def is_in_use(self, text: str) -> bool:
        """Return whether it is a key that was used lately and worked then."""
        hashed_key = self._entries.peek(id_of(text) or "")
        return hashed_key is not None and hashed_key.opens(Secret(text).hash, datetime.now(UTC))

    async def caller(self, text: str) -> Caller | None:
        """Return the caller that the key belongs to; None if it is no key, or works no more."""
        id = id_of(text)
        return None if id is None else await self.caller_of(id, Secret(text).hash)

    async def caller_of(
        self, id: str, hash: bytes, *, fresh_seconds: float = FRESH_SECONDS
    ) -> Caller | None:
        """Return the caller that a key belongs to by the hash of its text; None as above."""
        hashed_key = await self._entries.get(id, fresh_seconds=fresh_seconds)
        now = datetime.now(UTC)
        if hashed_key is None or not hashed_key.opens(hash, now):
            return None
        await self._touch(hashed_key, now)
        return Caller(
            f"key:{id}", hashed_key.key.grants, hashed_key.key.expires_at, hashed_key.key.name
        )

    def forget(self, id: str) -> None:
        """Read a key again at its next use, because it was changed here."""
        self._entries.forget(id)

    async def _read(self, id: str) -> HashedApiKey | None:
        async with self._engine.connect() as connection:
            return await api_keys.held(connection, id)

    async def _touch(self, hashed_key: HashedApiKey, now: datetime) -> None:
        used = hashed_key.key.last_used_at
        if used is not None and now - used < timedelta(seconds=TOUCH_SECONDS):
            return
        try:
            async with self._engine.begin() as connection:
                await api_keys.touch(connection, hashed_key.key.id)
        except DBAPIError as exc:  # read-only for a while: the key is valid all the same
            _log.warning("last use not noted", action="key_touch", error=type(exc.orig).__name__)
        self.forget(hashed_key.key.id)
