"""Writes exports for a few seconds of each turn, between deletions, and deletes ended ones.

It never runs beside an erasure of the same process: an erasure that takes a member finds the
objects that are written, and no part that is written afterwards has it.
"""

import time
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export import jobs, parts
from inference_store.export.jobs import ExportJob
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_contents import CopyLimits
from inference_store.export.part_writing import finish_export, remove_export, write_part
from inference_store.inference.errors import Invalid, ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.metrics import EXPORTED_BYTES, EXPORTS
from inference_store.query.deadline import OutOfTime

from .leadership_check import LeadershipCheck

SHARE_SECONDS: Final = 10.0
"""Of a turn."""
_RETRY_SECONDS: Final = 30.0
_log = structlog.get_logger()


class ExportWorker:
    """Carries exports out, each a step in turn, so that a small one does not wait for a large one.

    Raises Stopped and the errors of the database.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        *,
        most: int,
        copies: CopyLimits,
    ) -> None:
        """Make a worker; `most`: members of a part, `copies`: of what blobs it has."""
        self._engine = engine
        self._blobs = blobs
        self._check = check
        self._most = most
        self._copies = copies

    async def run_turn(self) -> None:
        """Work for a few seconds. What cannot be written now says why, and is tried again."""
        until = time.monotonic() + SHARE_SECONDS
        await self._remove_ended()
        while time.monotonic() < until and (unfinished := await self._list_unfinished()):
            for job in unfinished:
                if time.monotonic() >= until:
                    return
                await self._check.confirm_step()
                await self._try(job)

    async def _list_unfinished(self) -> list[ExportJob]:
        async with self._engine.connect() as connection:
            return await jobs.list_unfinished(connection)

    async def _try(self, job: ExportJob) -> None:
        """Take one step of a job; what goes wrong is recorded."""
        try:
            await self._step(job)
        except Invalid as error:
            await self._fail(job, error.detail)
        except (ObjectStoreUnavailable, OSError, OutOfTime) as error:
            await self._delay(job, error)

    async def _step(self, job: ExportJob) -> None:
        if job.state == "pending":
            await begin_listing(self._engine, self._blobs, job)
        elif job.state == "listing":
            about = (job, self._most, self._copies, self._check.confirm_leading)
            listing = Listing(self._engine, self._blobs, *about).list_some()
            await self._check.unless_stopped(listing)
        else:  # cut off between two batches alone: a thread would go on to write
            await self._write(job)

    async def _write(self, job: ExportJob) -> None:
        async with self._engine.connect() as connection:
            part = await parts.find_next(connection, job.id)
        if part is None:
            confirm = self._check.confirm_leading
            state = await finish_export(self._engine, self._blobs, job, confirm=confirm)
            EXPORTS.labels(state).inc()
            return
        size = await write_part(
            self._engine,
            self._blobs,
            job,
            part,
            limits=self._copies,
            confirm=self._check.confirm_step,
        )
        EXPORTED_BYTES.inc(size)

    async def _remove_ended(self) -> None:
        """Delete parts for at most half of a turn's share; the next turn goes on."""
        until = time.monotonic() + SHARE_SECONDS / 2
        async with self._engine.connect() as connection:
            ended = await jobs.list_removable(connection)
        for job in ended:
            if time.monotonic() >= until:
                return
            await self._check.confirm_step()
            try:
                await remove_export(self._engine, self._blobs, job)
            except ObjectStoreUnavailable as error:
                await self._delay(job, error)
            else:
                EXPORTS.labels("cancelled" if job.state == "cancelling" else "expired").inc()

    async def _fail(self, job: ExportJob, reason: str) -> None:
        async with self._engine.begin() as connection:
            await jobs.fail_job(connection, job.id, reason)
        EXPORTS.labels("failed").inc()
        _log.warning("export failed", action="export_failed", export=str(job.id), error=reason)

    async def _delay(self, job: ExportJob, error: Exception) -> None:
        reason = "the search took too long" if isinstance(error, OutOfTime) else str(error)
        async with self._engine.begin() as connection:
            await jobs.delay_job(connection, job.id, reason, seconds=_RETRY_SECONDS)
        _log.warning("export waits", action="export_waits", export=str(job.id), error=reason[:500])
