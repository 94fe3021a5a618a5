"""Turns of the retention service in the process of the tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker

RunRetention = Callable[[], Awaitable[None]]


class AlwaysLeader(LeadershipCheck):
    """A check that always passes: never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...

    async def confirm_leading(self) -> None: ...

    async def unless_stopped(self, work: Any) -> Any:
        return await work


def make_worker(
    engine: AsyncEngine, blobs: Blobs, settings: ApiSettings, *, is_due: bool = False, **more: Any
) -> RetentionWorker:
    """Return a worker with the api's settings and `more`; if it is due, so is its schedule."""
    names = RetentionSettings.model_fields.keys()
    values = {name: value for name, value in settings if name in names} | more
    due = asyncio.Event()
    if is_due:
        due.set()
    own_settings = RetentionSettings.model_validate(values)
    return RetentionWorker(own_settings, engine, blobs, AlwaysLeader(), due)


def make_run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: ApiSettings, **more: Any
) -> RunRetention:
    """Return a function that runs one turn of retention, with the api's settings and `more`."""

    async def run_turn() -> None:
        await make_worker(engine, blobs, settings, **more).run_turn()

    return run_turn
