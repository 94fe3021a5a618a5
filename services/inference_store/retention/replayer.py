"""Replays: sent and compared for a moment of each turn, beside the exports.

It never runs beside an erasure of the same process: what an erasure has marked is not sent.
"""

from inference_store.export import jobs
from inference_store.export.jobs import ExportJob
from inference_store.export.listing import begin_listing
from inference_store.platform.metrics import REPLAYED
from inference_store.replay.differences import compare_some
from inference_store.replay.items import is_settled, list_some
from inference_store.replay.sending import send_some

from .leader import Leader

_LOOK_SECONDS = 1.0


async def take_step(leader: Leader, job: ExportJob) -> None:
    """Take one step of a replay. Raises Invalid, OutOfTime, Unavailable and
    ObjectStoreUnavailable."""
    if job.state == "pending":
        await begin_listing(leader.engine, job)
        return
    if job.state == "listing":
        listing = list_some(leader.engine, job, leader.check.confirm_leading)
        await leader.check.unless_stopped(listing)
        return
    settings, check = leader.settings, leader.check
    # cut off between two batches alone: nobody would know what was sent of one
    pause = await send_some(leader.engine, leader.blobs, job, settings, check.confirm_step)
    changed = await compare_some(leader.engine, job, wait_seconds=settings.replay_wait_seconds)
    REPLAYED.inc(changed)
    async with leader.engine.begin() as connection:
        if pause is None and await is_settled(connection, job.id):
            await jobs.finish_job(connection, job.id)
        else:
            pause = _LOOK_SECONDS if pause is None else pause
            await jobs.delay_job(connection, job.id, None, seconds=pause)
