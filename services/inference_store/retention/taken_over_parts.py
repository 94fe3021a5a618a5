"""Deletes what a leader before this one may still put: it was frozen amid a part, and wakes."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs import members
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs

from .turn_schedule import TurnSchedule

_EVERY_TURN_SECONDS: Final = 120.0
"""Longer than a request to S3 takes with its repetitions; afterwards, with each schedule."""
_log = structlog.get_logger()


class TakenOverParts:
    """Remembers the keys that were being written when this service began to lead.

    The earlier leader deletes its part itself if it can. Parts of earlier takeovers are deleted by
    `restore_exports`, each time a service begins to lead.
    """

    def __init__(self, engine: AsyncEngine, blobs: Blobs, schedule: TurnSchedule) -> None:
        self._engine = engine
        self._blobs = blobs
        self._schedule = schedule
        self._keys: Sequence[str] = ()
        self._until = 0.0

    async def remember(self) -> None:
        """Read the keys, before this service writes or erases anything."""
        async with self._engine.connect() as connection:
            self._keys = await members.list_writing(connection)
        self._until = time.monotonic() + _EVERY_TURN_SECONDS

    def is_due(self) -> bool:
        """Check whether something was being written: each turn at first, then each schedule."""
        return bool(self._keys) and (time.monotonic() < self._until or self._schedule.is_due())

    async def delete(self) -> None:
        """Delete the objects that no part names any more, in every version; an erasure finds those
        that a part names. Raises ObjectStoreUnavailable."""
        async with self._engine.connect() as connection:
            named = await members.find_named(connection, self._keys)
        keys = [parse_stored(key) for key in self._keys if key not in named]
        present = await asyncio.to_thread(self._blobs.still_there, keys) if keys else []
        if present:
            faults = await asyncio.to_thread(self._blobs.delete_objects, present)
            about = {"keys": [str(key) for key in present], "faults": [f.message for f in faults]}
            _log.warning("deleted what no part names", action="export_objects_deleted", **about)
