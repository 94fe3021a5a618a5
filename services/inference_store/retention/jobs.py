"""The jobs of the leader's turn, in their order: the table of everything that retention does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .workers import Workers


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
