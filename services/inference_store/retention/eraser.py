"""Erases marked inferences, batch by batch. The order makes every crash harmless:

1. claim    marks that no legal hold protects, and objects that nothing else uses; in the fence, in
            one short transaction
2. delete   the objects, in every version (scope input: also the request in metadata and sidecar)
3. verify   by listing again that they are gone
4. forget   rows, marks, tombstones and counts; tell the certificate and the exports that name some
            of it; in one transaction

After the last batch the residual data is removed (`residual`), with the examples of the key
registry, and the objects of exports that hold some of it (`export_eraser`); then the erasure ends
with its certificate. Before that the ledger has that it ended: after a restore, no hold that
comes later brings back what was erased.

A crash before 4 leaves the marks, so no reader sees the inferences, and the next run begins again
at 1: deleting an object twice is no error. If an object still exists (S3 has locked it, or a right
is missing), its mark stays, so that the row that names it is not lost.

Batches overlap, in this order: while the objects of one batch are deleted, the rows of the batch
before it are deleted, and the batch after it is claimed and its versions are listed.
"""

import asyncio
import time
from collections import deque
from math import inf
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark.ended_erasures import IN_LEDGER, describe_ended, has_marks
from inference_store.erasure.mark.pending_deletions import Position
from inference_store.erasure.progress.erasure import Erasure, State, find_erasure
from inference_store.erasure.progress.state_changes import finish_erasure
from inference_store.erasure.verify.failure_reasons import count_failure
from inference_store.index.identities import Identity
from inference_store.inference.errors import HoldUnreadable
from inference_store.objects import Blobs
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.stages import stage

from .actor import ACTOR
from .batch import NOTHING, Batch
from .batch_claim import claim_batch
from .batch_eraser import BatchEraser
from .certifier import Certifier
from .export_eraser import ExportEraser
from .leadership_check import LeadershipCheck
from .quarantine import QuarantineEraser
from .residual import remove_residual
from .residual_in_holds import ResidualInHolds
from .uncertified import end_without_key

_log = structlog.get_logger()
# Batches that are claimed and not finished: a new hold finds all of them claimed.
_UNDER_WAY = 2


class Eraser:
    """Carries erasures out. Raises the error of an unavailable server; it can be called again."""

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        ledger: Ledger,
        check: LeadershipCheck,
        *,
        batch: int,
        certifier: Certifier | None = None,
    ) -> None:
        self._engine = engine
        self._bucket = blobs.buckets.default
        self._ledger = ledger
        self.check = check
        self._batch = batch
        # whether the last step left something because of a hold
        self.has_spared = False
        self._quarantine = QuarantineEraser(engine, blobs, ledger, check)
        self._residual_in_holds = ResidualInHolds(engine, check, certifier)
        self._exports = ExportEraser(engine, blobs, check)
        # by erasure that ran out of time: the position at which it continues, and its first error
        self.positions: dict[UUID, tuple[Position | None, str | None]] = {}
        self._certifier = certifier
        self._batch_eraser = BatchEraser(engine, blobs, certifier)
        # inferences in batches that are claimed and not finished
        self._in_progress: set[Identity] = set()

    async def finish(self, erasure: Erasure, *, seconds: float = inf) -> State | None:
        """Erase all marks of an erasure, whoever set them, and return its last state.

        None: it did not end within `seconds`; the next call continues.
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
        await remove_residual(
            self._engine, self._quarantine, self._residual_in_holds, erasure, self.check
        )
        copy_fault = await self._exports.delete_copies(erasure)
        await self._note_end(erasure)
        failpoint("retention.finish.before")
        async with self._engine.begin() as connection:
            state = await finish_erasure(
                connection,
                erasure,
                error=error or copy_fault,
                certifying=self._certifier is not None,
                copies_left=copy_fault is not None,
            )
            erasure = await find_erasure(connection, erasure.id) or erasure
        failpoint("retention.finish.after")
        if state in {"certifying", "partly_held"} and self._certifier is not None:
            state = await self._certifier.certify(erasure, state)
        elif state == "deleted":
            await end_without_key(self._engine, erasure)
        _log.info("erasure", action="erasure", id=str(erasure.id), state=state, error=error)
        return state

    async def _note_end(self, erasure: Erasure) -> None:
        """Write to the ledger that what the erasure has marked is deleted, if all of it is."""
        if erasure.cause not in IN_LEDGER:
            return
        async with self._engine.connect() as connection:
            if await has_marks(connection, erasure.id):
                return
        await self._ledger.write(
            "erasure_ended",
            lambda connection: describe_ended(connection, erasure.id),
            actor=ACTOR,
        )

    async def _erase_all(
        self, erasure: Erasure, after: Position | None, until: float
    ) -> tuple[Position | None, str | None]:
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
            # wait for the batches that have begun, also after an error
            await asyncio.gather(*under_way, return_exceptions=True)
        return after, next((reason for reason in faults if reason is not None), None)

    async def step(
        self, erasure: Erasure, after: Position | None, *, whole_span: bool = False
    ) -> tuple[Position | None, str | None]:
        """Erase at most one batch of marks after `after`; return the last one, and the error.

        (None, None): there are none, or it was cancelled; (None, reason): nothing may be erased.
        """
        batch, fault = await self._claim_next(erasure, after)
        self.has_spared = batch.has_spared
        if fault is None:
            fault = await self._erase_batch(erasure, batch, whole_span=whole_span)
        return batch.last, fault

    async def _claim_next(
        self, erasure: Erasure, after: Position | None
    ) -> tuple[Batch, str | None]:
        """Claim the next batch, or return the reason for which nothing may be erased."""
        await self.check.confirm_step()
        try:
            failpoint("retention.claim.before")
            with stage(STEP_SECONDS, "claim"):
                batch = await claim_batch(
                    self._engine,
                    self._ledger,
                    erasure,
                    after,
                    limit=self._batch,
                    bucket=self._bucket,
                    in_progress=self._in_progress,
                )
            failpoint("retention.claim.after")
            return batch, None
        except HoldUnreadable as error:
            count_failure("hold_unreadable")
            return NOTHING, error.detail

    async def _erase_batch(
        self, erasure: Erasure, batch: Batch, *, whole_span: bool = False
    ) -> str | None:
        try:
            return await self._batch_eraser.erase(erasure, batch, whole_span=whole_span)
        finally:
            self._in_progress -= batch.identities
