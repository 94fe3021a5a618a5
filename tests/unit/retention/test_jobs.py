"""The table of jobs says what retention does in a turn, in which order, and when."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from inference_store.platform.backoff import Stopped
from inference_store.platform.serving import Heartbeat
from inference_store.retention.leader import LeadershipCheck
from inference_store.retention.run import JOBS

EVERY_TURN = [
    *(
        "other copies of segments",
        "erasures",
        "truth that waits",
        "certificates",
        "values in holds",
        "runs",
        "chain head",
    ),
    *("reconciliations", "exports"),
]
ON_SCHEDULE = [
    *("scheduled run", "idle records", "sessions", "tombstones", "key registry"),
    *("emptied keys", "producers"),
    *(
        "old records",
        "old exports",
        "ledger values",
        "sparse segments",
        "partitions",
        "end of schedule",
    ),
]


@dataclass
class _Leader:
    """Where the jobs are, without what they work with."""

    due: asyncio.Event = field(default_factory=asyncio.Event)
    is_scheduled: bool = False
    completed: int = 0
    counted: int = 0
    taken_over: tuple[str, ...] = ()
    taken_over_until: float = 0.0


def _list_due(leader: Any) -> list[str]:
    return [job.name for job in JOBS if job.is_due(leader)]


def test_what_is_due_in_each_turn_and_on_schedule() -> None:
    leader: Any = _Leader()
    assert len({job.name for job in JOBS}) == len(JOBS) == 24
    assert _list_due(leader) == EVERY_TURN
    leader.due.set()  # in the middle of a turn: it waits for the next
    assert _list_due(leader) == EVERY_TURN
    leader.is_scheduled = True
    assert [name for name in _list_due(leader) if name not in EVERY_TURN] == ON_SCHEDULE


async def test_the_schedule_stays_due_until_housekeeping_is_done() -> None:
    leader: Any = _Leader(is_scheduled=True)
    leader.due.set()
    names = [job.name for job in JOBS]
    end = names.index("end of schedule")
    assert all(names.index(name) <= end for name in ON_SCHEDULE)
    assert leader.due.is_set()
    await JOBS[end].run(leader)
    assert not leader.due.is_set()
    assert "counts of partitions" in _list_due(leader)


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
