"""Erases what is marked, batch by batch. The order makes every crash harmless:

1. claim    marks that no legal hold protects, and objects that nothing else uses; in the fence, in
            one short transaction
2. delete   the objects, in every version (scope input: also the request in metadata and sidecar)
3. verify   by listing again that they are gone
4. forget   rows, marks, tombstones and counts; tell the certificate; in one transaction

After the last batch the residual data is removed (`residual`), with the examples of the key
registry, and the erasure ends with its certificate.

A crash before 4 leaves the marks, so no reader sees the inferences, and the next run begins again
at 1: it is no error to delete what is gone. If an object is still there (S3 has locked it, or a
right is missing), its mark stays, so that the row that names it is not lost.

Batches overlap, in this order: while the objects of one batch are deleted, the rows of the batch
before it are deleted, and the batch after it is claimed and its versions are listed. Objects are
listed for one batch at a time and deleted for one batch at a time, and so are rows, in the order of
the claims.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates.batches import tell_batch
from inference_store.erasure.delete import own_metadata, rows
from inference_store.erasure.erasures import Erasure, State
from inference_store.erasure.failures import failed
from inference_store.erasure.holds import kept
from inference_store.erasure.mark import claims, marks
from inference_store.erasure.mark.marks import Mark, Place
from inference_store.index.identities import Identity
from inference_store.inference.errors import HoldUnreadable
from inference_store.objects import Blobs, Deleted, DeleteFault, Listed
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint, failpoint_of_task
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.stages import stage

from .batch import NOTHING, Batch
from .certifier import Certifier
from .erasure_failures import format_failures, list_objects_of, record_failures
from .leadership_check import LeadershipCheck
from .objects import erase_objects, list_objects
from .quarantine import QuarantineEraser
from .residual import remove_residual
from .uncertified import end_without_key

_log = structlog.get_logger()
# Batches that are claimed and not finished: a hold that is placed then finds all of them claimed.
_UNDER_WAY = 2


class Eraser:
    """Carries erasures out. Raises BlobsAway and the errors of the database: try again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        *,
        batch: int,
        certifier: Certifier | None = None,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self.check = check
        self._batch = batch
        # whether the last step left something because of a hold
        self.has_spared = False
        self._quarantine = QuarantineEraser(engine, blobs, check, certifier)
        # by erasure that ran out of time: where it goes on, and what has failed so far
        self.positions: dict[UUID, tuple[Place | None, str | None]] = {}
        self._certifier = certifier
        self._listing = asyncio.Lock()
        self._objects = asyncio.Lock()
        self._rows = asyncio.Lock()
        # of batches that are claimed and not finished
        self._in_progress: set[Identity] = set()

    async def finish(self, erasure: Erasure, *, seconds: float = inf) -> State | None:
        """Erase all that is marked, whoever marked it, and return how it ended.

        None: it did not end within so many seconds; the next call goes on.
        """
        attributes = {"inference_store.erasure.scope": erasure.scope}
        with traces.ended(traces.begin("erasure", attributes=attributes)) as span:
            state = await self._finish(erasure, seconds)
            if state == "failed":
                traces.failed(span, "ErasureFailure")
        return state

    async def _finish(self, erasure: Erasure, seconds: float) -> State | None:
        after, error = self.positions.pop(erasure.id, (None, None))
        until = time.monotonic() + seconds
        after, fault = await self._erase_all(erasure, after, until)
        error = error or fault
        if after is not None:
            self.positions[erasure.id] = after, error
            return None
        await remove_residual(self._engine, self._quarantine, erasure, self.check)
        failpoint("retention.finish.before")
        async with self._engine.begin() as connection:
            certifying = self._certifier is not None
            state = await erasures.finish(connection, erasure, error=error, certifying=certifying)
            erasure = await erasures.find(connection, erasure.id) or erasure
        failpoint("retention.finish.after")
        if state in {"certifying", "partly_held"} and self._certifier is not None:
            state = await self._certifier.certify(erasure, state)
        elif state == "deleted":
            await end_without_key(self._engine, erasure)
        _log.info("erasure", action="erasure", id=str(erasure.id), state=state, error=error)
        return state

    async def _erase_all(
        self, erasure: Erasure, after: Place | None, until: float
    ) -> tuple[Place | None, str | None]:
        """Erase all marks after `after`, in batches that overlap.

        Returns the last mark if time is up, and the first error.
        """
        under_way: deque[asyncio.Task[str | None]] = deque()
        faults: list[str | None] = []
        try:
            while True:
                if len(under_way) == _UNDER_WAY:
                    faults.append(await under_way.popleft())
                batch, fault = await self._claim_next(erasure, after)
                faults.append(fault)
                after = batch.last
                if after is None:
                    break
                self._in_progress |= batch.identities
                under_way.append(asyncio.create_task(self._erase_batch(erasure, batch)))
                if time.monotonic() > until:
                    break
            while under_way:
                faults.append(await under_way.popleft())
        finally:
            # what has begun ends before anything else begins, also after an error
            await asyncio.gather(*under_way, return_exceptions=True)
        return after, next((each for each in faults if each is not None), None)

    async def step(
        self, erasure: Erasure, after: Place | None, *, whole_span: bool = False
    ) -> tuple[Place | None, str | None]:
        """Erase at most one batch of marks after `after`; return the last one, and what failed.

        (None, None) if there are none, or it was cancelled; (None, why) if nothing may be erased.
        """
        batch, fault = await self._claim_next(erasure, after)
        self.has_spared = batch.has_spared
        if fault is None:
            fault = await self._erase_batch(erasure, batch, whole_span=whole_span)
        return batch.last, fault

    async def _claim_next(self, erasure: Erasure, after: Place | None) -> tuple[Batch, str | None]:
        """Claim the next batch, or return why nothing may be erased."""
        await self.check.confirm_step()
        try:
            failpoint("retention.claim.before")
            with stage(STEP_SECONDS, "claim"):
                batch = await self._claim(erasure, after)
            failpoint("retention.claim.after")
            return batch, None
        except HoldUnreadable as error:
            failed("hold_unreadable")
            return NOTHING, error.detail

    async def _erase_batch(
        self, erasure: Erasure, batch: Batch, *, whole_span: bool = False
    ) -> str | None:
        """Delete a batch, verify that it is gone, and forget it; return what failed."""
        if not batch.page:
            return None
        try:
            async with self._list_objects(batch) as listed:
                deleted, faults = await erase_objects(
                    self._engine, self._blobs, erasure, batch, listed
                )
            async with self._rows:
                await self._end_batch(erasure, batch, deleted, faults, whole_span=whole_span)
        finally:
            self._in_progress -= batch.identities
        return format_failures(faults)

    @asynccontextmanager
    async def _list_objects(self, batch: Batch) -> AsyncIterator[Listed]:
        """List the objects while the batch before is deleted, then wait for their turn."""
        async with self._listing:
            listed = await list_objects(self._blobs, batch)
            # before the next batch is listed, so that the order stays
            await self._objects.acquire()
        try:
            yield listed
        finally:
            self._objects.release()

    async def _end_batch(
        self,
        erasure: Erasure,
        batch: Batch,
        deleted: Deleted,
        faults: list[DeleteFault],
        *,
        whole_span: bool,
    ) -> None:
        page, doomed = batch.page, batch.doomed
        done, objects = page, len(doomed)
        if left := {fault.key for fault in faults}:
            done = [mark for mark in page if left.isdisjoint(list_objects_of(mark))]
            stay = [mark for mark in page if not left.isdisjoint(list_objects_of(mark))]
            # the deleted objects of inferences that stay are counted when those are erased
            objects = len(doomed - {key for mark in stay for key in mark.doomed})
        # what follows an inference that stays is recorded one by one
        whole_span = whole_span and len(done) == len(page) and not batch.has_spared
        with stage(STEP_SECONDS, "forget"):
            await self._forget(
                erasure, done, batch, deleted, objects=objects, whole_span=whole_span
            )
        await record_failures(self._engine, self._blobs, erasure, faults, done)

    async def _claim(self, erasure: Erasure, after: Place | None) -> Batch:
        """Claim the next marks, and those of their objects that may be deleted.

        A hold that is placed before the fence is released keeps what it protects; a later one lists
        what is claimed here. From the commit on the erasure cannot be cancelled.
        """
        async with self._engine.begin() as connection:
            page = await marks.page(connection, erasure.id, after=after, limit=self._batch)
            if not page:
                return NOTHING
            if erasure.cause == "erased_again":
                await claims.after_edits(connection, page)
            # before the erasure's row is locked, for which the rows of the batch before wait
            await marks.gate_exclusive(connection)
            if not await erasures.advance(connection, erasure.id, "marking"):
                return NOTHING
            in_ledger = erasure.cause in {"policy", "request"}
            left = await kept.spare(
                connection, page, since=erasure.since, in_ledger=in_ledger, going=self._in_progress
            )
            spared, last = len(left) < len(page), page[-1].place
            if not left:
                return Batch((), frozenset(), last, spared)
            await erasures.begin_deleting(connection, erasure.id)
            await claims.mark_claimed(connection, erasure.id, left)
            doomed = await claims.claim(connection, left)
            moves = await own_metadata.reserve(connection, left, self._blobs.buckets.default)
            return Batch(left, doomed, last, spared, moves)

    async def _forget(
        self,
        erasure: Erasure,
        done: Sequence[Mark],
        batch: Batch,
        deleted: Deleted,
        *,
        objects: int,
        whole_span: bool,
    ) -> None:
        await failpoint_of_task("retention.row_delete.before")
        if not done:
            # the inferences wait for their other objects; the deleted ones are counted
            async with self._engine.begin() as connection:
                versions, size = deleted.versions, deleted.bytes
                await erasures.count(connection, erasure.id, versions=versions, bytes=size)
            return
        async with self._engine.begin() as connection:
            await erasures.advance(connection, erasure.id, "deleting_rows")
        async with self._engine.begin() as connection:
            erased = await rows.forget(
                connection,
                erasure,
                done,
                objects=objects,
                versions=deleted.versions,
                bytes=deleted.bytes,
                whole_span=whole_span,
            )
            await own_metadata.repoint(connection, done, batch.moves)
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, erasure.id)
                doomed = batch.doomed
                await tell_batch(connection, key, erasure, done, doomed, whole_span=whole_span)
        failpoint("retention.row_delete.after")
        ERASED.labels(erasure.scope).inc(erased)
        OBJECTS_DELETED.inc(objects)
