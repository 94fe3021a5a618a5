"""The turns of the leading retention service: resume, carry out, certify, housekeeping."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures, runs
from inference_store.erasure.certificates.head import AUDIT_KEY, Head
from inference_store.erasure.certificates.keys import signing_keys
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.holds import kept
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import tombstones
from inference_store.erasure.preview import previews
from inference_store.erasure.runs import RetentionRun
from inference_store.index import accounting, key_registry, partitions, registrations
from inference_store.objects import Blobs
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RETENTION_RUNS, RUN_SECONDS
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.query import counting

from .certifier import Certifier
from .eraser import Eraser
from .housekeeping import delete_old_records, redact_ledger
from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .marker import Marker
from .orphans import Orphans
from .quarantine import QuarantineEraser
from .reconciliation_worker import ReconciliationWorker
from .residual_in_holds import ResidualInHolds
from .run_executor import RunExecutor
from .size_reader import SizeReader
from .uncertified import end_without_key

_PRODUCERS_BATCH = 500
_COUNTING_SECONDS = 10.0
_SHARE_SECONDS = 10.0
_RESUME_SECONDS = 60.0
# Late events are rare by then.
_MERGED_AFTER = timedelta(days=3)
_CAUSE = "inference_store.retention.cause"
_log = structlog.get_logger()


class RetentionWorker:
    """Works as long as it leads. Raises Stopped, BlobsAway and the errors of the database."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        due: asyncio.Event,
        *,
        kafka: KafkaSettings | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._check = check
        self._due = due
        self._batch = settings.retention_batch_inferences
        self._ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        keys = signing_keys(settings)
        lock_days = settings.certificate_head_lock_days
        self._certifier = (
            Certifier(
                engine,
                blobs,
                keys,
                events_seconds=settings.tombstone_seconds,
                ledger_seconds=settings.ledger_values_keep_seconds,
                audit_seconds=settings.audit_keep_seconds,
                head=Head(settings, lock_days=lock_days),
            )
            if keys
            else None
        )
        self._audit_head = Head(settings, lock_days=lock_days, key=AUDIT_KEY) if keys else None
        self._eraser = Eraser(engine, blobs, check, batch=self._batch, certifier=self._certifier)
        self._residual_in_holds = ResidualInHolds(engine, check, self._certifier)
        self._marker = Marker(engine, self._ledger, QuarantineEraser(engine, blobs, check), check)
        self._orphans = Orphans(settings, engine, blobs, self._ledger, check, self._certifier)
        self._uncounted = False
        self._size_reader = SizeReader(engine, blobs, check)
        self._reconciliation_worker = ReconciliationWorker(settings, engine, blobs, check, kafka)

    async def begin(self) -> None:
        """Restart the runs of a process that died, and remove the unused labels that it left."""
        async with self._engine.begin() as connection:
            await runs.interrupted(connection)
            models = await registrations.every_model(connection)
        await remove_unused_labels(self._engine, models, self._check)
        if self._certifier is not None:
            await self._certifier.begin()

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        if self._certifier is not None:
            await self._certifier.write_head(at_once=True)

    async def run_turn(self) -> None:
        """Do all that is due now: first what was begun, then runs, then new requests."""
        await self._check.confirm_step()
        scheduled = self._due.is_set()
        await self._resume(failed=scheduled)
        await self._certify()
        await self._residual_in_holds.remove_recorded()
        if scheduled:
            async with self._engine.begin() as connection:
                if not await runs.is_scheduled(connection):
                    await runs.request(connection, cause="schedule")
        async with self._engine.connect() as connection:
            pending = await runs.pending(connection)
        for run in pending:
            await self._carry_out(run)
        if scheduled:
            await self._do_housekeeping()
            # only now: what failed on the way is due again
            self._due.clear()
            self._uncounted = True
        if self._certifier is not None:
            await self._certifier.write_head()
        if self._uncounted:
            await self._count_partitions()
        await self._size_reader.run_turn()
        await self._reconciliation_worker.run_turn()

    async def _resume(self, *, failed: bool) -> None:
        """Work on requested and unfinished erasures.

        Each gets a share of the time, over and over, so that none waits for the longest of them.
        The rest of a turn does not wait long either.
        """
        until = time.monotonic() + _RESUME_SECONDS
        await self._mark_released()
        async with self._engine.connect() as connection:
            begun = await erasures.unfinished(connection, failed=failed)
        while begun and time.monotonic() < until:
            begun = [erasure for erasure in begun if not await self._work(erasure)]
            async with self._engine.connect() as connection:
                fresh = await erasures.unfinished(connection, failed=False)
            ids = {erasure.id for erasure in begun}
            begun += [erasure for erasure in fresh if erasure.id not in ids]

    async def _mark_released(self) -> None:
        """Mark again what a hold protected that has been released since."""
        marked = 1
        while marked:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                marked = await kept.take_up(connection, limit=self._batch)
            if marked:
                self._marker.search_again()
                # they may lie before the position at which an erasure goes on
                self._eraser.positions.clear()

    async def _work(self, erasure: Erasure) -> bool:
        """Work on an erasure; True if it is over, or if nothing more can be done now."""
        if erasure.cause == "orphans":
            return await self._orphans.work(erasure, seconds=_SHARE_SECONDS)
        marked = await self._marker.mark(erasure, seconds=_SHARE_SECONDS)
        if marked == "all":
            return await self._eraser.finish(erasure, seconds=_SHARE_SECONDS) is not None
        return marked == "over"

    async def _certify(self) -> None:
        """Sign the certificates that had to wait for a partition to be dropped, or for the right
        key."""
        async with self._engine.connect() as connection:
            waiting = await erasures.certifying(connection)
        for erasure in waiting:
            await self._check.confirm_step()
            if self._certifier is not None:
                await self._certifier.certify(erasure, erasure.state)
            elif erasure.state == "certifying":
                await end_without_key(self._engine, erasure)

    async def _carry_out(self, run: RetentionRun) -> None:
        failpoint("retention.run_start.before")
        async with self._engine.begin() as connection:
            await runs.start(connection, run.id)
        failpoint("retention.run_start.after")
        began = time.monotonic()
        with traces.ended(traces.begin("retention run", attributes={_CAUSE: run.cause})) as span:
            error = await self._make_executor(run).carry_out()
            if error is not None:
                traces.failed(span, "ErasureFailure")
        RUN_SECONDS.observe(time.monotonic() - began)
        failpoint("retention.run_finish.before")
        async with self._engine.begin() as connection:
            await runs.finish(connection, run.id, error=error)
        failpoint("retention.run_finish.after")
        RETENTION_RUNS.labels("failed" if error else "done").inc()
        if error is None:
            LAST_RUN.set_to_current_time()
        _log.info("retention run", action="retention_run", id=str(run.id), error=error)

    def _make_executor(self, run: RetentionRun) -> RunExecutor:
        now = datetime.now(UTC)
        return RunExecutor(
            self._engine, self._ledger, self._eraser, run, batch=self._batch, now=now
        )

    async def _do_housekeeping(self) -> None:
        """Fold, forget or measure what grows with time."""
        async with self._engine.begin() as connection:
            await runs.forget_idle(connection)
            await previews.forget(connection)
            await removed_models.remove_emptied(connection)
        forgotten, limit = 1, self._settings.tombstone_seconds
        while forgotten:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                forgotten = await tombstones.forget(connection, older_than_seconds=limit)
        folded = 1
        while folded:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                folded = await key_registry.fold(connection)
        await self._fold_producers()
        await delete_old_records(
            self._engine, self._settings, self._check, self._ledger, audit_head=self._audit_head
        )
        await redact_ledger(self._ledger, self._settings, self._check)
        await partitions.tell(self._engine)
        await partitions.analyse(self._engine)
        target = self._settings.partition_inferences
        await partitions.merge(self._engine, target=target, older_than=_MERGED_AFTER)

    async def _count_partitions(self) -> None:
        """Count partitions that are no longer written, for a few seconds; erasures do not wait for
        it."""
        counted = counting.count_ended(
            self._engine, seconds=_COUNTING_SECONDS, step=self._check.confirm_step
        )
        self._uncounted = not await self._check.unless_stopped(counted)

    async def _fold_producers(self) -> None:
        """Fold producers that were not heard for long into their sums, batch by batch."""
        folded = 1
        while folded:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                folded = await accounting.fold_producers(connection, limit=_PRODUCERS_BATCH)
