"""Marks the inferences of an erasure, batch by batch; removes the marks of a cancelled one, and
waives what holds protect. Below: the worker that writes exports between deletions.

A waiver works batch by batch. Each batch is in the ledger before it takes effect; then the
erasure needs only its certificate. After a crash in between, less is left to waive.
"""

import time
from math import inf
from typing import Final, Literal, TypeAlias
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import requests
from inference_store.erasure.batches import describe_batch
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.progress import (
    Erasure,
    advance_erasure,
    fail_erasure,
    find_state,
    finish_erasure,
)
from inference_store.erasure.requests import remove_pending_of
from inference_store.erasure.runs import count_failure
from inference_store.erasure.selection import UnmarkedModel, find_requested, list_unmarked_models
from inference_store.export import jobs
from inference_store.export.jobs import ExportJob
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_formats import CopyLimits
from inference_store.export.part_writing import finish_export, remove_export, write_part
from inference_store.inference.errors import (
    HoldUnreadable,
    Invalid,
    ObjectStoreUnavailable,
    StoreError,
    Unavailable,
)
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import EXPORTED_BYTES, EXPORTS, STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.query.deadline import OutOfTime
from inference_store.retention.leadership_check import ACTOR, LeadershipCheck
from inference_store.retention.orphan_eraser import QuarantineEraser

MarkResult: TypeAlias = Literal["all", "not_yet", "over"]
_BATCH = 5_000
_log = structlog.get_logger()


class Marker:
    """Marks erasures that are not marked yet.

    Raises the errors of the database, and Unavailable: try again later.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        ledger: Ledger,
        quarantine: QuarantineEraser,
        check: LeadershipCheck,
        *,
        batch: int = _BATCH,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._quarantine = quarantine
        # erasures whose dead letters and parked events were searched
        self._searched: set[UUID] = set()
        self._check = check
        self._batch = batch

    def search_again(self) -> None:
        """Search again: a hold was released, so that quarantined events may be erased now."""
        self._searched.clear()

    async def mark(self, erasure: Erasure, *, seconds: float = inf) -> MarkResult:
        """Mark the inferences of an erasure, for at most `seconds`.

        `all`: it may be erased; `not_yet`: call again; `over`: it was cancelled, its rest was
        waived, or its filter could not be evaluated, which is tried again like other failures.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                parts = await list_unmarked_models(connection, erasure)
                state = await find_state(connection, erasure.id)
            if state in {"cancelling", "cancelled"}:
                await self._unmark(erasure)
                return "over"
            try:
                if state == "giving_up":
                    await self._waive_held(erasure)
                    return "over"
                if not parts:
                    # Search once in a process, and again after a hold is released: removed
                    # events stay removed.
                    if erasure.id not in self._searched:
                        await self._quarantine.remove_subject(erasure)
                        self._searched.add(erasure.id)
                    return "all"
                await self._mark_batch(erasure, parts[0])
            except Unavailable:
                raise  # the ledger is unavailable: the service waits, and the erasure with it
            except (OutOfTime, StoreError) as error:
                await self._fail(erasure, error)
                return "over"
        return "not_yet"

    async def _mark_batch(self, erasure: Erasure, part: UnmarkedModel) -> None:
        failpoint("retention.mark.before")
        with stage(STEP_SECONDS, "mark"):
            async with self._engine.begin() as connection:
                if not await advance_erasure(connection, erasure.id, "marking"):
                    return
                selected = await find_requested(connection, erasure, part, limit=self._batch)
                uids, position = selected.uids, selected.position
                batch = await describe_batch(
                    connection, erasure, part.model, uids, position=position
                )
            await self._ledger.write("erasure_batch", batch, actor=ACTOR)
        failpoint("retention.mark.after")

    async def _unmark(self, erasure: Erasure) -> None:
        removed = 1
        while removed:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                removed = await remove_pending_of(connection, erasure.id, limit=self._batch)
        await self._ledger.write("erasure_cancelled", {"erasure": str(erasure.id)}, actor=ACTOR)
        _log.info("erasure", action="erasure", id=str(erasure.id), state="cancelled")

    async def _waive_held(self, erasure: Erasure) -> None:
        while True:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                body = await requests.find_held_rest(connection, erasure, limit=self._batch)
            if body is None:
                break
            await self._ledger.write("erasure_given_up", body, actor=ACTOR)
        async with self._engine.begin() as connection:
            # its certificate is next; without a key, the certifying step ends the erasure
            state = await finish_erasure(connection, erasure, error=None, certifying=True)
        _log.info("erasure", action="erasure", id=str(erasure.id), state=state)

    async def _fail(self, erasure: Erasure, error: Exception) -> None:
        count_failure("hold_unreadable" if isinstance(error, HoldUnreadable) else "other")
        message = str(error) or "the filter cannot be answered in two minutes: narrow it"
        async with self._engine.begin() as connection:
            await fail_erasure(connection, erasure.id, message)
        _log.warning("erasure", action="erasure", id=str(erasure.id), state="failed", error=message)


# Writes exports for a few seconds of each turn, between deletions, and deletes ended ones.
#
# It never runs beside an erasure of the same process: an erasure that takes a member finds the
# objects that are written, and no part that is written afterwards has it.

SHARE_SECONDS: Final = 10.0
"""Of a turn."""
_RETRY_SECONDS: Final = 30.0


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
            await begin_listing(self._engine, job)
        elif job.state == "listing":
            about = (job, self._most, self._copies, self._check.confirm_leading)
            listing = Listing(self._engine, self._blobs, *about).list_some()
            await self._check.unless_stopped(listing)
        else:  # cut off between two batches alone: a thread would go on to write
            await self._write(job)

    async def _write(self, job: ExportJob) -> None:
        async with self._engine.connect() as connection:
            part = await jobs.find_next(connection, job.id)
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
