"""Walks the table of jobs (`jobs.py`), turn by turn, while this service leads."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.export.restoring import restore_exports
from inference_store.index import registrations
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .workers import Workers, build_workers

_log = structlog.get_logger()


class RetentionWorker:
    """Works as long as it leads.

    Raises Stopped, ObjectStoreUnavailable and the errors of the database.
    """

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
        self._engine, self._blobs = engine, blobs
        self._check = check
        self._workers = build_workers(settings, engine, blobs, check, due, kafka)
        self._jobs = list_jobs(self._workers)

    async def begin(self) -> None:
        """Restart the runs of a process that died, remove the unused labels that it left, and
        import what only the bucket has of certificates and exports."""
        await self._workers.taken_over_parts.remember()
        async with self._engine.begin() as connection:
            await runs.reset_interrupted(connection)
            models = await registrations.every_model(connection)
        await remove_unused_labels(self._engine, models, self._check)
        await self._workers.certificates.begin()
        # before anything is erased: an erasure finds what is listed
        await restore_exports(self._engine, self._blobs, self._check.confirm_step)

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        await self._workers.certificates.end()

    async def run_turn(self) -> None:
        """Run every job that is due, in the order of the table."""
        await self._check.confirm_step()
        self._workers.schedule.begin_turn()
        for job in self._jobs:
            if job.is_due():
                _log.debug("job", action="retention_job", job=job.name)
                await job.run()


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a turn. `is_due` is called when the jobs before it are done."""

    name: str
    is_due: Callable[[], bool]
    run: Callable[[], Awaitable[None]]


def list_jobs(workers: Workers) -> tuple[Job, ...]:
    """Return the jobs in order: unfinished work, runs of policies, housekeeping, the rest."""
    scheduled, counter = workers.schedule.is_due, workers.partition_counter
    taken_over = workers.taken_over_parts
    certificates, runs, housekeeping = workers.certificates, workers.runs, workers.housekeeping
    return (
        Job("parts of the leader before", taken_over.is_due, taken_over.delete),
        Job("erasures", _every_turn, workers.erasures.resume),
        Job("certificates", _every_turn, certificates.sign_waiting),
        Job("values in holds", _every_turn, workers.residual_in_holds.remove_recorded),
        Job("scheduled run", scheduled, runs.request_scheduled),
        Job("runs", _every_turn, runs.carry_out_pending),
        Job("idle records", scheduled, housekeeping.delete_idle_records),
        Job("sessions", scheduled, housekeeping.delete_ended_sessions),
        Job("tombstones", scheduled, housekeeping.delete_tombstones),
        Job("key registry", scheduled, housekeeping.fold_key_registry),
        Job("producers", scheduled, housekeeping.fold_producers),
        Job("old records", scheduled, housekeeping.delete_old_records),
        Job("old exports", scheduled, housekeeping.delete_old_exports),
        Job("ledger values", scheduled, housekeeping.redact_ledger),
        Job("partitions", scheduled, housekeeping.maintain_partitions),
        # only now: a job that failed before this is due again
        Job("end of schedule", scheduled, workers.schedule.complete),
        Job("chain head", _every_turn, certificates.write_head),
        Job("counts of partitions", counter.is_due, counter.count),
        Job("reconciliations", _every_turn, workers.reconciliation_worker.run_turn),
        Job("exports", _every_turn, workers.exports.run_turn),
    )


def _every_turn() -> bool:
    return True
