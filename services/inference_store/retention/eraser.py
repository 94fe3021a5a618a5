"""Erases what is marked, batch by batch. The order makes every crash harmless:

1. claim    what no legal hold keeps, and which objects nobody else points to; in the gate, in
            one short transaction
2. delete   the objects, in every version (scope input: also the request in metadata and sidecar)
3. verify   by listing again that they are gone
4. forget   rows, marks, tombstones and counts, and tell the certificate, in one transaction

After the last batch what the inferences left elsewhere goes (`remnants`) with the key registry's
examples, and the erasure ends with its certificate.

A crash before 4 leaves the marks, so no reader shows the inferences, and the next run begins at
1 again: deleting what is gone is no fault. An object that is still there (a lock of S3, a right
that is missing) keeps its mark, so that its row, which names it, is not lost.

Batches overlap, each in this order: while objects of one are deleted, the rows of the one before
are, and the one after is claimed and its versions are listed. Objects are listed for one batch at a
time, deleted for one, and so are rows, in the order of the claims.
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
from .uncertified import without_key

_log = structlog.get_logger()
# Batches that are claimed and not done: a hold that comes then finds all of them claimed.
_UNDER_WAY = 2


class Eraser:
    """Works erasures off. Raises BlobsAway and the database's trouble: try again later."""

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
        self.spared = False
        self._quarantine = QuarantineEraser(engine, blobs, check, certifier)
        # where those that were given no more time go on, and what went wrong so far
        self.places: dict[UUID, tuple[Place | None, str | None]] = {}
        self._certifier = certifier
        self._listing = asyncio.Lock()
        self._objects = asyncio.Lock()
        self._rows = asyncio.Lock()
        # of batches that are claimed and not done
        self._going: set[Identity] = set()

    async def finish(self, one: Erasure, *, seconds: float = inf) -> State | None:
        """Erase all that is marked, whoever marked it, and say how it ended.

        None: not in so many seconds; the next call goes on.
        """
        attributes = {"inference_store.erasure.scope": one.scope}
        with traces.ended(traces.begin("erasure", attributes=attributes)) as span:
            state = await self._finish(one, seconds)
            if state == "failed":
                traces.failed(span, "ErasureFailure")
        return state

    async def _finish(self, one: Erasure, seconds: float) -> State | None:
        after, error = self.places.pop(one.id, (None, None))
        until = time.monotonic() + seconds
        after, fault = await self._all(one, after, until)
        error = error or fault
        if after is not None:
            self.places[one.id] = after, error
            return None
        await remove_residual(self._engine, self._quarantine, one, self.check)
        failpoint("retention.finish.before")
        async with self._engine.begin() as connection:
            certifying = self._certifier is not None
            state = await erasures.finish(connection, one, error=error, certifying=certifying)
            one = await erasures.find(connection, one.id) or one
        failpoint("retention.finish.after")
        if state in {"certifying", "partly_held"} and self._certifier is not None:
            state = await self._certifier.certify(one, state)
        elif state == "deleted":
            await without_key(self._engine, one)
        _log.info("erasure", action="erasure", id=str(one.id), state=state, error=error)
        return state

    async def _all(
        self, one: Erasure, after: Place | None, until: float
    ) -> tuple[Place | None, str | None]:
        """Erase all marks behind `after`, batches overlapping: the last mark where time was up,
        and what went wrong first."""
        under_way: deque[asyncio.Task[str | None]] = deque()
        faults: list[str | None] = []
        try:
            while True:
                if len(under_way) == _UNDER_WAY:
                    faults.append(await under_way.popleft())
                batch, fault = await self._next(one, after)
                faults.append(fault)
                after = batch.last
                if after is None:
                    break
                self._going |= batch.identities
                under_way.append(asyncio.create_task(self._carry_out(one, batch)))
                if time.monotonic() > until:
                    break
            while under_way:
                faults.append(await under_way.popleft())
        finally:
            # what is under way ends before anything else begins, also after trouble
            await asyncio.gather(*under_way, return_exceptions=True)
        return after, next((each for each in faults if each is not None), None)

    async def step(
        self, one: Erasure, after: Place | None, *, whole_span: bool = False
    ) -> tuple[Place | None, str | None]:
        """Erase the marks behind `after`, at most a batch: the last one and what went wrong.

        (None, None) when there are none, or it was cancelled; (None, why) where nothing may go.
        """
        batch, fault = await self._next(one, after)
        self.spared = batch.spared
        if fault is None:
            fault = await self._carry_out(one, batch, whole_span=whole_span)
        return batch.last, fault

    async def _next(self, one: Erasure, after: Place | None) -> tuple[Batch, str | None]:
        """Claim the next batch; or why nothing may go."""
        await self.check.confirm_step()
        try:
            failpoint("retention.claim.before")
            with stage(STEP_SECONDS, "claim"):
                batch = await self._claim(one, after)
            failpoint("retention.claim.after")
            return batch, None
        except HoldUnreadable as error:
            failed("hold_unreadable")
            return NOTHING, error.detail

    async def _carry_out(
        self, one: Erasure, batch: Batch, *, whole_span: bool = False
    ) -> str | None:
        """Delete, see it gone, forget; what went wrong."""
        if not batch.page:
            return None
        try:
            async with self._listed(batch) as listed:
                deleted, faults = await erase_objects(self._engine, self._blobs, one, batch, listed)
            async with self._rows:
                await self._end(one, batch, deleted, faults, whole_span=whole_span)
        finally:
            self._going -= batch.identities
        return format_failures(faults)

    @asynccontextmanager
    async def _listed(self, batch: Batch) -> AsyncIterator[Listed]:
        """List the objects while those of the batch before are deleted, and wait for their turn."""
        async with self._listing:
            listed = await list_objects(self._blobs, batch)
            # before the next batch is listed, so that the order stays
            await self._objects.acquire()
        try:
            yield listed
        finally:
            self._objects.release()

    async def _end(
        self,
        one: Erasure,
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
            # what went of those that stay is counted when they go
            objects = len(doomed - {key for mark in stay for key in mark.doomed})
        # those that follow one that stays are remembered one by one
        whole_span = whole_span and len(done) == len(page) and not batch.spared
        with stage(STEP_SECONDS, "forget"):
            await self._forget(one, done, batch, deleted, objects=objects, whole_span=whole_span)
        await record_failures(self._engine, self._blobs, one, faults, done)

    async def _claim(self, one: Erasure, after: Place | None) -> Batch:
        """The next marks, and their objects that may go.

        A hold that is placed before the gate is given back keeps its own; one that comes later
        lists what is claimed here. From the commit on nothing is cancelled.
        """
        async with self._engine.begin() as connection:
            page = await marks.page(connection, one.id, after=after, limit=self._batch)
            if not page:
                return NOTHING
            if one.cause == "erased_again":
                await claims.after_edits(connection, page)
            # before the erasure's row is locked, for which the rows of the batch before wait
            await marks.gate_exclusive(connection)
            if not await erasures.advance(connection, one.id, "marking"):
                return NOTHING
            in_ledger = one.cause in {"policy", "request"}
            left = await kept.spare(
                connection, page, since=one.since, in_ledger=in_ledger, going=self._going
            )
            spared, last = len(left) < len(page), page[-1].place
            if not left:
                return Batch((), frozenset(), last, spared)
            await erasures.begin_deleting(connection, one.id)
            await claims.mark_claimed(connection, one.id, left)
            doomed = await claims.claim(connection, left)
            moves = await own_metadata.reserve(connection, left, self._blobs.buckets.default)
            return Batch(left, doomed, last, spared, moves)

    async def _forget(
        self,
        one: Erasure,
        done: Sequence[Mark],
        batch: Batch,
        deleted: Deleted,
        *,
        objects: int,
        whole_span: bool,
    ) -> None:
        await failpoint_of_task("retention.row_delete.before")
        if not done:
            # the inferences wait for what is left of them; what went of their objects is counted
            async with self._engine.begin() as connection:
                versions, size = deleted.versions, deleted.bytes
                await erasures.count(connection, one.id, versions=versions, bytes=size)
            return
        async with self._engine.begin() as connection:
            await erasures.advance(connection, one.id, "deleting_rows")
        async with self._engine.begin() as connection:
            erased = await rows.forget(
                connection,
                one,
                done,
                objects=objects,
                versions=deleted.versions,
                bytes=deleted.bytes,
                whole_span=whole_span,
            )
            await own_metadata.repoint(connection, done, batch.moves)
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, one.id)
                doomed = batch.doomed
                await tell_batch(connection, key, one, done, doomed, whole_span=whole_span)
        failpoint("retention.row_delete.after")
        ERASED.labels(one.scope).inc(erased)
        OBJECTS_DELETED.inc(objects)
