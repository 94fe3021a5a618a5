"""The table of jobs, and the worker that walks it, turn by turn, while this service leads."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.export.restoring import restore_exports
from inference_store.index import registrations
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from . import housekeeping, work
from .leadership_check import LeadershipCheck
from .residual import remove_unused_labels
from .work import Leader, build_leader

_log = structlog.get_logger()


def _every_turn(_: Leader) -> bool:
    return True


def _scheduled(leader: Leader) -> bool:
    return leader.is_scheduled


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a turn. `is_due` is called when the jobs before it are done."""

    name: str
    is_due: Callable[[Leader], bool]
    run: Callable[[Leader], Awaitable[None]]


async def _complete_schedule(leader: Leader) -> None:
    leader.due.clear()
    leader.completed += 1


JOBS: Final = (
    Job(
        "parts of the leader before",
        lambda leader: leader.taken_over.is_due(is_scheduled=leader.is_scheduled),
        lambda leader: leader.taken_over.delete(),
    ),
    Job("erasures", _every_turn, work.resume_erasures),
    Job("certificates", _every_turn, work.sign_waiting),
    Job("values in holds", _every_turn, lambda leader: leader.in_holds.remove_recorded()),
    Job("scheduled run", _scheduled, work.request_scheduled),
    Job("runs", _every_turn, work.carry_out_pending),
    Job("idle records", _scheduled, housekeeping.delete_idle_records),
    Job("sessions", _scheduled, housekeeping.delete_ended_sessions),
    Job("tombstones", _scheduled, housekeeping.delete_tombstones),
    Job("key registry", _scheduled, housekeeping.fold_key_registry),
    Job("producers", _scheduled, housekeeping.fold_producers),
    Job("old records", _scheduled, housekeeping.delete_records),
    Job("old exports", _scheduled, housekeeping.delete_old_exports),
    Job("ledger values", _scheduled, housekeeping.redact_ledger),
    Job("partitions", _scheduled, housekeeping.maintain_partitions),
    # only now: a job that failed before this is due again
    Job("end of schedule", _scheduled, _complete_schedule),
    Job("chain head", _every_turn, work.write_head),
    Job(
        "counts of partitions",
        lambda leader: leader.counted < leader.completed,
        work.count_partitions,
    ),
    Job("reconciliations", _every_turn, work.reconcile),
    Job("exports", _every_turn, lambda leader: leader.exports.run_turn()),
)
"""Unfinished work, runs of policies, housekeeping, the rest: in this order."""


class RetentionWorker:
    """Works as long as it leads. `due`: set by the schedule.

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
        self._leader = build_leader(settings, engine, blobs, check, due, kafka)

    async def begin(self) -> None:
        """Restart the runs of a process that died, remove the unused labels that it left, and
        import what only the bucket has of certificates and exports."""
        leader = self._leader
        await leader.taken_over.remember()
        async with leader.engine.begin() as connection:
            await runs.reset_interrupted(connection)
            models = await registrations.every_model(connection)
        await remove_unused_labels(leader.engine, models, leader.check)
        if leader.certifier is not None:
            await leader.certifier.begin()
        # before anything is erased: an erasure finds what is listed
        await restore_exports(leader.engine, leader.blobs, leader.check.confirm_step)

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        if self._leader.certifier is not None:
            await self._leader.certifier.write_head(at_once=True)

    async def run_turn(self) -> None:
        """Run every job that is due, in the order of the table."""
        leader = self._leader
        await leader.check.confirm_step()
        leader.is_scheduled = leader.due.is_set()
        for job in JOBS:
            if job.is_due(leader):
                _log.debug("job", action="retention_job", job=job.name)
                await job.run(leader)
