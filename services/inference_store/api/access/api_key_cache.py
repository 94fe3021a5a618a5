"""Caches API keys of Postgres, and reads them again after two seconds.

A key that was revoked through another replica works here for so long, and no longer.
"""

import time
from collections import OrderedDict
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Caller
from inference_store.access.keys import Held
from inference_store.access.secrets import id_of
from inference_store.index import api_keys
from inference_store.index.api_keys import TOUCH_SECONDS

FRESH_SECONDS = 2.0
_MOST = 10_000
_log = structlog.get_logger()


class ApiKeyCache:
    """The keys that were used lately; made-up ids of strangers do not push them out."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._known: OrderedDict[str, tuple[float, Held]] = OrderedDict()

    def is_in_use(self, text: str) -> bool:
        """Whether it is a key that was used lately, and worked then."""
        known = self._known.get(id_of(text) or "")
        return known is not None and known[1].opens(text, datetime.now(UTC))

    async def caller(self, text: str) -> Caller | None:
        """Return the caller that the key belongs to; None if it is no key, or works no more."""
        id = id_of(text)
        if id is None:
            return None
        held = await self._held(id)
        now = datetime.now(UTC)
        if held is None or not held.opens(text, now):
            return None
        await self._touch(held, now)
        return Caller(f"key:{id}", held.key.grants, held.key.expires_at)

    def forget(self, id: str) -> None:
        """Read a key again at its next use, because it was changed here."""
        if id in self._known:
            self._known[id] = (float("-inf"), self._known[id][1])

    async def _held(self, id: str) -> Held | None:
        known = self._known.get(id)
        if known is not None and time.monotonic() - known[0] < FRESH_SECONDS:
            return known[1]
        async with self._engine.connect() as connection:
            held = await api_keys.held(connection, id)
        self._known.pop(id, None)
        if held is not None:
            self._known[id] = (time.monotonic(), held)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return held

    async def _touch(self, held: Held, now: datetime) -> None:
        used = held.key.last_used_at
        if used is not None and now - used < timedelta(seconds=TOUCH_SECONDS):
            return
        try:
            async with self._engine.begin() as connection:
                await api_keys.touch(connection, held.key.id)
        except DBAPIError as exc:  # read-only for a while: the key is valid all the same
            _log.warning("last use not noted", action="key_touch", error=type(exc.orig).__name__)
        self.forget(held.key.id)
