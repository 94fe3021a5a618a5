"""Writes exports for a few seconds of each turn, between deletions, and deletes ended ones.

It never runs beside an erasure of the same process: an erasure that takes a member finds the
objects that are written, and no part that is written afterwards has it.
"""

import time
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs import incomplete_parts, members, state_changes
from inference_store.export.jobs import job as jobs
from inference_store.export.jobs.blob_copies import CopyLimits
from inference_store.export.jobs.job import ExportJob
from inference_store.export.jobs.listing import begin_listing, list_some
from inference_store.export.jobs.manifest import finish_export
from inference_store.export.jobs.part_writing import write_part
from inference_store.export.jobs.removal import remove_export
from inference_store.inference.errors import Invalid, ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.metrics import EXPORTED_BYTES, EXPORTS
from inference_store.query.deadline import OutOfTime

from .leadership_check import LeadershipCheck

SHARE_SECONDS: Final = 10.0
"""Of a turn."""
_RETRY_SECONDS: Final = 30.0
_STALE_SECONDS: Final = 5.0
_INCOMPLETE_SECONDS: Final = 60.0
_INCOMPLETE_PARTS: Final = 20
"""That are looked at in each minute."""
_STALE: Final = "an erasure has still to delete a part, and S3 may keep it"
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
        self._look_at = 0.0
        self._looked_to = incomplete_parts.FIRST

    async def run_turn(self) -> None:
        """Work for a few seconds. What cannot be written now says why, and is tried again."""
        until = time.monotonic() + SHARE_SECONDS
        await self._remove_ended()
        await self._reopen_incomplete()
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
            listing = list_some(
                self._engine,
                self._blobs,
                job,
                most=self._most,
                copies=self._copies,
                confirm=self._check.confirm_leading,
            )
            await self._check.unless_stopped(listing)
        else:  # cut off between two batches alone: a thread would go on to write
            await self._write(job)

    async def _write(self, job: ExportJob) -> None:
        async with self._engine.connect() as connection:
            part = await members.find_next(connection, job.id)
            is_waiting = part is None and await members.has_stale(connection, job.id)
        if part is not None:
            size = await write_part(
                self._engine,
                self._blobs,
                job,
                part,
                limits=self._copies,
                confirm=self._check.confirm_step,
            )
            EXPORTED_BYTES.inc(size)
        elif is_waiting:  # for years if S3 has locked the part: the other exports go on
            await self._delay(job, _STALE, seconds=_STALE_SECONDS)
        else:
            confirm = self._check.confirm_leading
            await finish_export(self._engine, self._blobs, job, confirm=confirm)
            EXPORTS.labels("done").inc()

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

    async def _reopen_incomplete(self) -> None:
        """Let parts be written again whose members are visible again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _INCOMPLETE_SECONDS
        async with self._engine.connect() as connection:
            parts = await incomplete_parts.list_incomplete(
                connection, after=self._looked_to, limit=_INCOMPLETE_PARTS
            )
        for part in parts:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                if await incomplete_parts.count_visible(connection, part) > (part.rows or 0):
                    await incomplete_parts.reopen_part(connection, part)
        is_last = len(parts) < _INCOMPLETE_PARTS
        self._looked_to = incomplete_parts.FIRST if is_last else parts[-1].position

    async def _fail(self, job: ExportJob, reason: str) -> None:
        async with self._engine.begin() as connection:
            await state_changes.fail_job(connection, job.id, reason)
        EXPORTS.labels("failed").inc()
        _log.warning("export failed", action="export_failed", export=str(job.id), error=reason)

    async def _delay(
        self, job: ExportJob, error: Exception | str, *, seconds: float = _RETRY_SECONDS
    ) -> None:
        reason = "the search took too long" if isinstance(error, OutOfTime) else str(error)
        async with self._engine.begin() as connection:
            await state_changes.delay_job(connection, job.id, reason, seconds=seconds)
        _log.warning("export waits", action="export_waits", export=str(job.id), error=reason[:500])
