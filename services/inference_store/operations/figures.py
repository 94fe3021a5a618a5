"""Figures that only the tables know, for the gauges of whoever looks now and then."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.erasures import ENDED, STATES
from inference_store.erasure.holds.hold import is_in_force
from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.partitions import Spans, spans
from inference_store.index.tables import (
    dead_letter,
    erasing,
    erasure,
    erasure_held,
    hold,
    kafka_partition,
    parked_event,
    reconciliation,
    retention_run,
)

# What holds keep is not overdue.
_KEPT = ("partly_held", "giving_up")


@dataclass(frozen=True, slots=True)
class BooksFigures:
    """The books of every partition together, and what waits; ages in seconds."""

    counts: Mapping[Outcome, int]
    # partitions whose offsets do not each have exactly one state
    open_partitions: int
    dead_letters_open: int
    parked: int
    parked_oldest_seconds: float
    # the Kafka time of the oldest parked record
    parked_record_time: datetime | None


async def of_books(connection: AsyncConnection) -> BooksFigures:
    """Small whatever is stored: a row a Kafka partition, and indexes of what is set aside."""
    here = kafka_partition.c
    states = [here[outcome.value] for outcome in Outcome]
    total = sum(states[1:], start=states[0])
    sums = select(
        *(func.coalesce(func.sum(state), 0) for state in states),
        func.count().filter(total != here.next - here.first),
    )
    *counts, unbalanced = (await connection.execute(sums)).one()
    waiting = select(
        func.count(), func.min(parked_event.c.created_at), func.min(parked_event.c.record_time)
    )
    parked, since, record_time = (await connection.execute(waiting)).one()
    letters = select(func.count()).select_from(dead_letter).where(dead_letter.c.state == "open")
    return BooksFigures(
        counts={outcome: int(count) for outcome, count in zip(Outcome, counts, strict=True)},
        open_partitions=unbalanced,
        dead_letters_open=int(await connection.scalar(letters) or 0),
        parked=parked,
        parked_oldest_seconds=age(since),
        parked_record_time=record_time,
    )


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """How many producers are in which state, and of how many a report does not close."""

    states: Mapping[str, int]
    open: int


async def of_producers(connection: AsyncConnection) -> ProducerFigures:
    """Reads what was reported, and no sequences: a row a reporter."""
    return ProducerFigures(*await accounting.count_producer_states(connection))


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """The spans of time that the tables are cut into."""

    spans: int
    # for how long from now, without a hole, there are partitions; 0 where there is none for now
    ahead_seconds: float


async def of_spans(connection: AsyncConnection) -> SpanFigures:
    """Reads the catalogue."""
    known, now = await spans(connection), datetime.now(UTC)
    catalogue, until = Spans(known), now
    while (span := catalogue.find(until)) is not None:
        until = span.hi
    return SpanFigures(len(known), (until - now).total_seconds())


@dataclass(frozen=True, slots=True)
class RetentionFigures:
    """What is to be erased, and when a run last ended well."""

    marked: int
    erasures: Mapping[str, int]
    oldest_seconds: float
    last_run: datetime | None
    audit_unlinked_seconds: float
    holds: int
    # left by erasures because of a hold
    held: int


async def of_retention(connection: AsyncConnection) -> RetentionFigures:
    """Marks are few; unfinished erasures are found by the index of their state."""
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
    return RetentionFigures(
        marked=int(marked or 0),
        erasures=dict.fromkeys(unfinished, 0) | {row[0]: row[1] for row in rows},
        oldest_seconds=age(min((row[2] for row in rows if row[0] not in _KEPT), default=None)),
        last_run=await connection.scalar(ended),
        audit_unlinked_seconds=(await audit_chain.unlinked(connection))[1],
        holds=int(await connection.scalar(in_force) or 0),
        held=int(await connection.scalar(held) or 0),
    )


@dataclass(frozen=True, slots=True)
class ReconciliationFigures:
    """What the newest comparison of everything found, and when it ended."""

    counts: Mapping[str, int]
    # so many inferences more has the index than the books
    difference: int
    ended: datetime


async def of_reconciliation(connection: AsyncConnection) -> ReconciliationFigures | None:
    """Whoever made it; None where none is kept. One of a single model says nothing of the rest."""
    here = reconciliation.c
    query = select(here.counts, here.books, here.finished_at)
    query = query.where(here.state == "done", here.model_id.is_(None))
    row = (await connection.execute(query.order_by(here.finished_at.desc()).limit(1))).first()
    if row is None:
        return None
    difference = (row.books or {}).get("difference", 0)
    return ReconciliationFigures(row.counts, difference, row.finished_at)


def age(since: datetime | None) -> float:
    """Seconds since then; 0 for never."""
    return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())
