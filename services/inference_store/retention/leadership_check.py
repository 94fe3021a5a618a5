"""Between two steps: is the service still meant to work, and is it still the only one?"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from inference_store.erasure.leader_election import LeaderElection
from inference_store.platform.admin import Heartbeat

T = TypeVar("T")


class Stopped(Exception):
    """The service was asked to end; whatever was begun is resumed by the next one."""


class LeadershipCheck:
    """Asked before every batch, so that no step is longer than one batch."""

    def __init__(
        self, leadership: LeaderElection, heartbeat: Heartbeat, stop: asyncio.Event
    ) -> None:
        self._election = leadership
        self._heartbeat = heartbeat
        self._stop = stop

    async def confirm_step(self) -> None:
        """Raises Stopped, or the driver's error when leadership is lost with its connection."""
        if self._stop.is_set():
            raise Stopped
        self._heartbeat.beat()
        await self._election.confirm()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work answers; it is given up when the service is asked to end: Stopped."""
        doing, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return doing.result()
        finally:
            for each in (doing, stopping):
                each.cancel()
            await asyncio.gather(doing, stopping, return_exceptions=True)
