"""Caches what authenticates requests: what Postgres has, at most two seconds old."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

FRESH_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 0.25
"""For a page that only looks whether its session goes on: it looks seldom, and shall not wait."""
_MOST: Final = 10_000
_NEVER: Final = float("-inf")
K = TypeVar("K")
V = TypeVar("V")


class FreshCache(Generic[K, V]):
    """Recently read rows. Missing rows are not remembered, so that made-up ids of strangers
    push nothing out."""

    def __init__(self, read: Callable[[K], Awaitable[V | None]]) -> None:
        self._read = read
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._changes = 0

    def peek(self, key: K) -> V | None:
        """Return what was read last, however old it is."""
        known = self._known.get(key)
        return None if known is None else known[1]

    async def get(self, key: K, *, fresh_seconds: float = FRESH_SECONDS) -> V | None:
        """Return what is there, read again if it is older than `fresh_seconds`."""
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < fresh_seconds:
            return known[1]
        began, changes = time.monotonic(), self._changes
        value = await self._read(key)
        self._known.pop(key, None)
        if value is not None:
            # What was changed here meanwhile may have been read before the change.
            self._known[key] = (began if changes == self._changes else _NEVER, value)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Read it again at its next use, because it was changed here."""
        self._changes += 1
        if key in self._known:
            self._known[key] = (_NEVER, self._known[key][1])
