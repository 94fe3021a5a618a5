"""Checks between two steps that this service may go on: not stopped, and still the leader."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from inference_store.erasure.locks import LeaderElection
from inference_store.platform.serving import Heartbeat

ACTOR: Final = "retention"
T = TypeVar("T")


class Stopped(Exception):
    """The service was asked to stop; the next one resumes its work."""


class LeadershipCheck:
    """Runs before every batch, so that no step is longer than one batch."""

    def __init__(
        self, leadership: LeaderElection, heartbeat: Heartbeat, stop: asyncio.Event
    ) -> None:
        self._election = leadership
        self._heartbeat = heartbeat
        self._stop = stop

    async def confirm_step(self) -> None:
        """Raise Stopped, or the driver's error if leadership is lost with its connection."""
        if self._stop.is_set():
            raise Stopped
        self._heartbeat.beat()
        await self._election.confirm()

    async def confirm_leading(self) -> None:
        """Raise the driver's error if leadership is lost, also when the service is to stop."""
        await self._election.confirm()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. If the service is asked to stop, cancel it and raise
        Stopped."""
        doing, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return doing.result()
        finally:
            for task in (doing, stopping):
                task.cancel()
            await asyncio.gather(doing, stopping, return_exceptions=True)
