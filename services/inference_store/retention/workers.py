"""The workers of the service that leads, wired from its settings."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.housekeeping import removed_exports, removed_models
from inference_store.erasure.leader_election import RECONCILING, open_election
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.chain_head import AUDIT_HEAD, ChainHead
from inference_store.erasure.log.keys import signing_keys
from inference_store.erasure.mark import tombstones
from inference_store.erasure.preview import previews
from inference_store.erasure.progress.erasure import list_uncertified
from inference_store.erasure.runs import RetentionRun
from inference_store.erasure.verify.failure_reasons import count_failure
from inference_store.export import erased, parts
from inference_store.export.jobs import delete_old_jobs
from inference_store.export.part_contents import CopyLimits
from inference_store.index import accounting, key_registry, partitions, web_sessions
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.reconciliations import FINAL, Reconciliation
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RECONCILIATIONS, RETENTION_RUNS, RUN_SECONDS
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from . import record_deletion
from .certifier import Certifier
from .eraser import Eraser
from .erasure_worker import ErasureWorker
from .export_worker import ExportWorker
from .leadership_check import LeadershipCheck
from .marker import Marker
from .orphan_eraser import OrphanEraser
from .partition_counter import PartitionCounter
from .quarantine import QuarantineEraser
from .residual_in_holds import ResidualInHolds
from .run_executor import RunExecutor
from .turn_schedule import TurnSchedule
from .uncertified import end_without_key

_PRODUCERS_BATCH: Final = 500
# Late events are rare by then.
_MERGED_AFTER: Final = timedelta(days=3)


class Housekeeping:
    """Works batch by batch, each in its own transaction; the next schedule repeats failed work."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        ledger: Ledger,
        check: LeadershipCheck,
        audit_head: ChainHead | None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ledger = ledger
        self._check = check
        self._audit_head = audit_head

    async def delete_idle_records(self) -> None:
        """Delete runs that deleted nothing, old previews, and models that were removed."""
        async with self._engine.begin() as connection:
            await runs.delete_idle(connection)
            await previews.delete_expired(connection)
            await removed_models.remove_emptied(connection)
        await self._repeat(removed_exports.delete_rows)

    async def delete_ended_sessions(self) -> None:
        """Delete sessions of browsers that have ended by themselves."""
        await self._repeat(web_sessions.delete_ended)

    async def delete_tombstones(self) -> None:
        """Delete tombstones of events that Kafka no longer has, and uids that erasures took of
        exports as long ago."""
        seconds = self._settings.tombstone_seconds
        await self._repeat(partial(tombstones.delete_old, older_than_seconds=seconds))
        await self._repeat(partial(erased.forget_uids, older_than_seconds=seconds))

    async def fold_key_registry(self) -> None:
        """Fold the deltas of the key registry into its counts."""
        await self._repeat(key_registry.fold)

    async def fold_producers(self) -> None:
        """Fold producers that have been silent for long into their sums."""
        await self._repeat(partial(accounting.fold_producers, limit=_PRODUCERS_BATCH))

    async def delete_old_records(self) -> None:
        """Delete our own records that are older than their settings."""
        await record_deletion.delete_old_records(
            self._engine, self._settings, self._check, self._ledger, audit_head=self._audit_head
        )

    async def delete_old_exports(self) -> None:
        """Delete exports that ended long ago, with what they know of copies."""
        seconds = self._settings.run_keep_seconds
        await self._repeat(partial(delete_old_jobs, older_than_seconds=seconds))

    async def redact_ledger(self) -> None:
        """Redact the entries of the ledger that are old enough."""
        await record_deletion.redact_ledger(self._ledger, self._settings, self._check)

    async def maintain_partitions(self) -> None:
        """Tune the vacuum of partitions, collect their statistics, and merge small old ones."""
        await partitions.tune_vacuum(self._engine)
        await partitions.analyse(self._engine)
        target = self._settings.partition_inferences
        await partitions.merge(self._engine, target=target, older_than=_MERGED_AFTER)

    async def _repeat(self, step: Callable[[AsyncConnection], Awaitable[int]]) -> None:
        """Repeat a step until it finds nothing more, each time in its own transaction."""
        count = 1
        while count:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                count = await step(connection)


_CAUSE = "inference_store.retention.cause"


class RunWorker:
    """Starts and ends runs.

    Raises Stopped, ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(self, engine: AsyncEngine, ledger: Ledger, eraser: Eraser, *, batch: int) -> None:
        self._engine = engine
        self._ledger = ledger
        self._eraser = eraser
        self._batch = batch

    async def request_scheduled(self) -> None:
        """Request the run of the schedule, unless one is requested already."""
        async with self._engine.begin() as connection:
            if not await runs.is_scheduled(connection):
                await runs.request_run(connection, cause="schedule")

    async def carry_out_pending(self) -> None:
        """Carry out all pending runs."""
        async with self._engine.connect() as connection:
            pending = await runs.list_pending(connection)
        for run in pending:
            await self._carry_out(run)

    async def _carry_out(self, run: RetentionRun) -> None:
        failpoint("retention.run_start.before")
        async with self._engine.begin() as connection:
            await runs.start_run(connection, run.id)
        failpoint("retention.run_start.after")
        began = time.monotonic()
        error = await self._execute(run)
        RUN_SECONDS.observe(time.monotonic() - began)
        failpoint("retention.run_finish.before")
        async with self._engine.begin() as connection:
            await runs.finish_run(connection, run.id, error=error)
        failpoint("retention.run_finish.after")
        RETENTION_RUNS.labels("failed" if error else "done").inc()
        if error is None:
            LAST_RUN.set_to_current_time()
        _log.info("retention run", action="retention_run", id=str(run.id), error=error)

    async def _execute(self, run: RetentionRun) -> str | None:
        executor = RunExecutor(
            self._engine,
            self._ledger,
            self._eraser,
            run,
            batch=self._batch,
            now=datetime.now(UTC),
        )
        with traces.ended(traces.begin("retention run", attributes={_CAUSE: run.cause})) as span:
            error = await executor.carry_out()
            if error is not None:
                traces.failed(span, "ErasureFailure")
        return error


_SECONDS = 5.0


class ReconciliationWorker:
    """Carries out requested reconciliations, and one a day if that is set."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        kafka: KafkaSettings | None,
    ) -> None:
        self._engine = engine
        self._check = check
        self._scheduled = settings.reconcile_schedule == "daily"
        self._reconciler = Reconciler(settings, engine, blobs, kafka=kafka)

    async def run_turn(self) -> None:
        """Work for a few seconds, unless a command does the work.

        If the object store is unavailable, or listing is forbidden, deletion goes on, and the next
        turn tries again.
        """
        reconciliation = await self._reconciler.find_due(scheduled=self._scheduled)
        if reconciliation is None:
            return
        async with open_election(self._engine, RECONCILING) as lock:
            if not await lock.take():
                return
            try:
                await self._work(reconciliation)
            except ObjectStoreUnavailable as error:
                count_failure("object_store")
                _log.warning("away", action="reconcile_waits", error=str(error)[:500])

    async def _work(self, reconciliation: Reconciliation) -> None:
        until = time.monotonic() + _SECONDS
        while reconciliation.state not in FINAL and time.monotonic() < until:
            await self._check.confirm_step()
            reconciliation = await self._check.unless_stopped(self._reconciler.step(reconciliation))
        if reconciliation.state in FINAL:
            RECONCILIATIONS.labels(reconciliation.state).inc()


_EVERY_TURN_SECONDS: Final = 120.0
"""Longer than a request to S3 takes with its repetitions; afterwards, with each schedule."""
_log = structlog.get_logger()


class TakenOverParts:
    """Remembers the keys that were being written when this service began to lead.

    The earlier leader deletes its part itself if it can. Parts of earlier takeovers are deleted by
    `restore_exports`, each time a service begins to lead.
    """

    def __init__(self, engine: AsyncEngine, blobs: Blobs, schedule: TurnSchedule) -> None:
        self._engine = engine
        self._blobs = blobs
        self._schedule = schedule
        self._keys: Sequence[str] = ()
        self._until = 0.0

    async def remember(self) -> None:
        """Read the keys, before this service writes or erases anything."""
        async with self._engine.connect() as connection:
            self._keys = await parts.list_writing(connection)
        self._until = time.monotonic() + _EVERY_TURN_SECONDS

    def is_due(self) -> bool:
        """Check whether something was being written: each turn at first, then each schedule."""
        return bool(self._keys) and (time.monotonic() < self._until or self._schedule.is_due())

    async def delete(self) -> None:
        """Delete the objects that no part names any more, in every version; an erasure finds those
        that a part names. Raises ObjectStoreUnavailable."""
        async with self._engine.connect() as connection:
            named = await parts.find_named(connection, self._keys)
        keys = [parse_stored(key) for key in self._keys if key not in named]
        present = await asyncio.to_thread(self._blobs.still_there, keys) if keys else []
        if present:
            faults = await asyncio.to_thread(self._blobs.delete_objects, present)
            about = {"keys": [str(key) for key in present], "faults": [f.message for f in faults]}
            _log.warning("deleted what no part names", action="export_objects_deleted", **about)


class CertificateWorker:
    """Uses the certifier, if there is a key to sign with."""

    def __init__(
        self, engine: AsyncEngine, certifier: Certifier | None, check: LeadershipCheck
    ) -> None:
        self._engine = engine
        self._certifier = certifier
        self._check = check

    async def begin(self) -> None:
        """Import the certificates in the bucket, before anything is erased."""
        if self._certifier is not None:
            await self._certifier.begin()

    async def sign_waiting(self) -> None:
        """Sign the certificates that had to wait for a partition to be dropped, or for the right
        key."""
        async with self._engine.connect() as connection:
            waiting = await list_uncertified(connection)
        for erasure in waiting:
            await self._check.confirm_step()
            if self._certifier is not None:
                await self._certifier.certify(erasure, erasure.state)
            elif erasure.state == "certifying":
                await end_without_key(self._engine, erasure)

    async def write_head(self) -> None:
        """Write the newest certificate to the head, once a minute."""
        if self._certifier is not None:
            await self._certifier.write_head()

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        if self._certifier is not None:
            await self._certifier.write_head(at_once=True)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers whose methods are the jobs of a turn."""

    schedule: TurnSchedule
    erasures: ErasureWorker
    certificates: CertificateWorker
    residual_in_holds: ResidualInHolds
    runs: RunWorker
    housekeeping: Housekeeping
    partition_counter: PartitionCounter
    reconciliation_worker: ReconciliationWorker
    exports: ExportWorker
    taken_over_parts: TakenOverParts


def build_workers(  # noqa: PLR0917
    settings: RetentionSettings,
    engine: AsyncEngine,
    blobs: Blobs,
    check: LeadershipCheck,
    due: asyncio.Event,
    kafka: KafkaSettings | None,
) -> Workers:
    """Build the workers. `due`: set by the schedule."""
    batch, schedule = settings.retention_batch_inferences, TurnSchedule(due)
    ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
    certifier = _build_certifier(settings, engine, blobs)
    eraser = Eraser(engine, blobs, ledger, check, batch=batch, certifier=certifier)
    marker = Marker(engine, ledger, QuarantineEraser(engine, blobs, ledger, check), check)
    orphans = OrphanEraser(settings, engine, blobs, ledger, check, certifier)
    return Workers(
        schedule=schedule,
        erasures=ErasureWorker(engine, marker, eraser, orphans, check, schedule, batch=batch),
        certificates=CertificateWorker(engine, certifier, check),
        residual_in_holds=ResidualInHolds(engine, check, certifier),
        runs=RunWorker(engine, ledger, eraser, batch=batch),
        housekeeping=Housekeeping(settings, engine, ledger, check, _find_audit_head(settings)),
        partition_counter=PartitionCounter(engine, check, schedule),
        reconciliation_worker=ReconciliationWorker(settings, engine, blobs, check, kafka),
        exports=ExportWorker(
            engine,
            blobs,
            check,
            most=settings.export_part_inferences,
            copies=CopyLimits(settings.export_blob_bytes, settings.export_part_bytes),
        ),
        taken_over_parts=TakenOverParts(engine, blobs, schedule),
    )


def _build_certifier(
    settings: RetentionSettings, engine: AsyncEngine, blobs: Blobs
) -> Certifier | None:
    """Build the certifier; None if there is no key to sign with."""
    keys = signing_keys(settings)
    if not keys:
        return None
    return Certifier(
        engine,
        blobs,
        keys,
        events_seconds=settings.tombstone_seconds,
        ledger_seconds=settings.ledger_values_keep_seconds,
        audit_seconds=settings.audit_keep_seconds,
        head=ChainHead(settings, lock_days=settings.certificate_head_lock_days),
    )


def _find_audit_head(settings: RetentionSettings) -> ChainHead | None:
    """Return the locked object for the newest checkpoint of the audit; None without a key."""
    if not signing_keys(settings):
        return None
    return ChainHead(settings, lock_days=settings.certificate_head_lock_days, key=AUDIT_HEAD)
