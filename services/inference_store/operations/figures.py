"""Figures for gauges that only the tables know."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.holds import is_in_force
from inference_store.erasure.progress import ENDED, STATES
from inference_store.export.jobs import count_all_unfinished
from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.partitions import TimePartitions, list_partitions
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_held,
    hold,
    kafka_partition,
    retention_run,
    unsettled_event,
)

# What holds protect is not overdue.
_HELD_STATES = ("partly_held", "giving_up")


@dataclass(frozen=True, slots=True)
class AccountingFigures:
    """The offset accounting of all partitions together, and what waits; ages in seconds."""

    counts: Mapping[Outcome, int]
    # partitions whose offsets do not each have exactly one state
    open_partitions: int
    dead_letters_open: int
    parked: int
    parked_oldest_seconds: float
    # the Kafka time of the oldest parked record
    parked_record_time: datetime | None


async def read_accounting(connection: AsyncConnection) -> AccountingFigures:
    """Read them; cheap however much is stored: a row for each Kafka partition, and indexes of
    quarantined events."""
    here = kafka_partition.c
    states = [here[outcome.value] for outcome in Outcome]
    total = sum(states[1:], start=states[0])
    sums = select(
        *(func.coalesce(func.sum(state), 0) for state in states),
        func.count().filter(total != here.next - here.first),
    )
    *counts, unbalanced = (await connection.execute(sums)).one()
    waits = unsettled_event.c
    waiting = select(func.count(), func.min(waits.created_at), func.min(waits.record_time)).where(
        waits.state == "parked"
    )
    parked, since, record_time = (await connection.execute(waiting)).one()
    letters = select(func.count()).select_from(unsettled_event).where(waits.state == "open")
    return AccountingFigures(
        counts={outcome: int(count) for outcome, count in zip(Outcome, counts, strict=True)},
        open_partitions=unbalanced,
        dead_letters_open=int(await connection.scalar(letters) or 0),
        parked=parked,
        parked_oldest_seconds=compute_age(since),
        parked_record_time=record_time,
    )


async def count_open_producers(connection: AsyncConnection) -> int:
    """Count those of the producers that miss most whose accounts do not close: this adds up their
    sequences."""
    return sum(not account.closes for account in await accounting.list_producers(connection))


async def read_partitions(connection: AsyncConnection) -> tuple[int, float]:
    """Return how many time partitions there are, and for how many seconds from now on without a
    hole; 0 if there is none for now."""
    partitions, now = await list_partitions(connection), datetime.now(UTC)
    ahead = TimePartitions(partitions).find_end(now) - now
    return len(partitions), ahead.total_seconds()


@dataclass(frozen=True, slots=True)
class RetentionFigures:
    """The pending deletions, and when a run last succeeded."""

    marked: int
    erasures: Mapping[str, int]
    oldest_seconds: float
    last_run: datetime | None
    audit_unlinked_seconds: float
    holds: int
    # left by erasures because of a hold
    held: int
    exports: int
    # exports blocked by an error
    exports_waiting: int


async def read_retention(connection: AsyncConnection) -> RetentionFigures:
    """Read them: marks are few, and unfinished erasures have an index by their state."""
    marked = await connection.scalar(select(func.count()).select_from(erasing))
    columns = (erasure.c.state, func.count(), func.min(erasure.c.requested_at))
    unfinished = [state for state in STATES if state not in ENDED]
    where = erasure.c.state.in_(unfinished)
    rows: list[Any] = list(
        await connection.execute(select(*columns).where(where).group_by(erasure.c.state))
    )
    ended = select(func.max(retention_run.c.finished_at)).where(retention_run.c.state == "done")
    in_force = select(func.count()).select_from(hold).where(is_in_force())
    held = select(func.count()).select_from(erasure_held)
    unwritten, waiting = await count_all_unfinished(connection)
    return RetentionFigures(
        marked=int(marked or 0),
        erasures=dict.fromkeys(unfinished, 0) | {row[0]: row[1] for row in rows},
        oldest_seconds=compute_age(
            min((row[2] for row in rows if row[0] not in _HELD_STATES), default=None)
        ),
        last_run=await connection.scalar(ended),
        audit_unlinked_seconds=await audit_chain.measure_unlinked(connection),
        holds=int(await connection.scalar(in_force) or 0),
        held=int(await connection.scalar(held) or 0),
        exports=unwritten,
        exports_waiting=waiting,
    )


def compute_age(since: datetime | None) -> float:
    """Return the seconds since then; 0 for never."""
    return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())
