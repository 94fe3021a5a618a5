"""Caches thumbnails for a while, in the memory of this process alone."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from .decoder import Thumbnail

MOST_BYTES: Final = 64 * 1024 * 1024
KEEP_SECONDS: Final = 600.0
_OVERHEAD_BYTES: Final = 1024
"""About the bytes that an entry takes beside its JPEG."""
Key = tuple[int, UUID, str, int]
"""The model, the uid, the key of the input, and the longest edge."""


class ThumbnailCache:
    """The thumbnails that were used last; each is dropped after ten minutes at most.

    It does not know what was erased: whoever uses it has read the index first.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most_bytes, clock
        self._entries: OrderedDict[Key, tuple[float, Thumbnail]] = OrderedDict()
        self._made: OrderedDict[Key, float] = OrderedDict()
        self._of: dict[tuple[int, UUID], set[Key]] = {}
        self.bytes = 0

    def get(self, key: Key) -> Thumbnail | None:
        """Return a thumbnail, if it is kept."""
        self.sweep()
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][1]

    def put(self, key: Key, thumbnail: Thumbnail) -> None:
        """Store a thumbnail; those that were used longest ago are dropped for it."""
        self.sweep()
        self._drop(key)
        self._entries[key] = (self._clock(), thumbnail)
        self._made[key] = self._entries[key][0]
        self._of.setdefault(key[:2], set()).add(key)
        self.bytes += len(thumbnail.jpeg) + _OVERHEAD_BYTES
        while self.bytes > self._most:
            self._drop(next(iter(self._entries)))

    def forget(self, model: int, uid: UUID) -> None:
        """Drop what is cached of an inference that is deleted, or whose input is."""
        for key in tuple(self._of.get((model, uid), ())):
            self._drop(key)

    def sweep(self) -> None:
        """Drop what was made too long ago."""
        oldest = self._clock() - KEEP_SECONDS
        while self._made and next(iter(self._made.values())) <= oldest:
            self._drop(next(iter(self._made)))

    def _drop(self, key: Key) -> None:
        self._made.pop(key, None)
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= len(entry[1].jpeg) + _OVERHEAD_BYTES
            self._of[key[:2]].discard(key)
            if not self._of[key[:2]]:
                del self._of[key[:2]]
