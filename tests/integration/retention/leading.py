"""A leader of retention in this process."""

import asyncio
from contextlib import aclosing

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.leader_election import open_election
from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker


async def lead(
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    *,
    turns: int = 3,
    scheduled: bool = True,
    resume: bool = True,
) -> None:
    """Resume what was begun, and work for some turns, with a run of the schedule or without."""
    due = asyncio.Event()
    if scheduled:
        due.set()
    async with open_election(engine) as election:
        assert await election.take()
        check = LeadershipCheck(election, Heartbeat(), asyncio.Event())
        # what it has begun to send goes on beside the test
        async with aclosing(RetentionWorker(settings, engine, blobs, check, due)) as leader:
            if resume:
                await leader.begin()
            for _ in range(turns):
                await leader.run_turn()
