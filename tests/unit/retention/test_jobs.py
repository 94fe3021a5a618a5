"""The table of jobs says what retention does in a turn, in which order, and when."""

import asyncio
from dataclasses import dataclass, field, fields
from typing import Any, cast

import pytest

from inference_store.platform.admin import Heartbeat
from inference_store.retention.leadership_check import LeadershipCheck, Stopped
from inference_store.retention.turn_schedule import TurnSchedule
from inference_store.retention.worker import Job, list_jobs
from inference_store.retention.workers import Workers

EVERY_TURN = [
    *("erasures", "certificates", "values in holds", "runs", "chain head"),
    *("reconciliations", "exports"),
]
ON_SCHEDULE = [
    *("scheduled run", "idle records", "sessions", "tombstones", "key registry", "producers"),
    *("old records", "old exports", "ledger values", "partitions", "end of schedule"),
]


@dataclass
class _Worker:
    """Stands in for every worker: each attribute is a job that notes its name."""

    name: str
    done: list[str]
    is_due: Any = field(default=lambda: False)

    def __getattr__(self, method: str) -> Any:
        async def run() -> None:
            self.done.append(f"{self.name}.{method}")

        return run


def _make_table(due: asyncio.Event, done: list[str]) -> tuple[TurnSchedule, tuple[Job, ...]]:
    schedule = TurnSchedule(due)
    names = [worker.name for worker in fields(Workers) if worker.name != "schedule"]
    parts: dict[str, Any] = {name: _Worker(name, done) for name in names}
    return schedule, list_jobs(Workers(schedule=schedule, **parts))


def _list_due(jobs: tuple[Job, ...]) -> list[str]:
    return [job.name for job in jobs if job.is_due()]


def test_a_schedule_that_comes_in_the_middle_of_a_turn_waits_for_the_next() -> None:
    due = asyncio.Event()
    schedule, jobs = _make_table(due, [])
    assert len({job.name for job in jobs}) == len(jobs) == 20
    schedule.begin_turn()
    assert _list_due(jobs) == EVERY_TURN
    due.set()
    assert _list_due(jobs) == EVERY_TURN
    schedule.begin_turn()
    assert [name for name in _list_due(jobs) if name not in EVERY_TURN] == ON_SCHEDULE


async def test_the_schedule_stays_due_until_housekeeping_is_done() -> None:
    due, done = asyncio.Event(), cast(list[str], [])
    due.set()
    schedule, jobs = _make_table(due, done)
    schedule.begin_turn()
    names = [job.name for job in jobs]
    for job in jobs[: names.index("end of schedule")]:
        await job.run()
    assert due.is_set()
    assert done[-1] == "housekeeping.maintain_partitions"
    await jobs[names.index("end of schedule")].run()
    assert not due.is_set()
    assert schedule.completed == 1


class Leader:
    """Whoever leads for ever."""

    async def confirm(self) -> None: ...


async def test_at_the_end_of_the_service_it_is_given_up() -> None:
    stop, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    leader: Any = Leader()
    pace = LeadershipCheck(leader, Heartbeat(300), stop)
    doing = asyncio.create_task(pace.unless_stopped(work()))
    await begun.wait()
    stop.set()
    with pytest.raises(Stopped):
        await doing
    assert ended.is_set()
