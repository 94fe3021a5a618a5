"""Stored counts of partitions that are no longer written: inferences by key, label and time.

They stay valid without maintenance: a trigger on the partition's inferences notes any write since a
count was begun, in the writer's own transaction, and outdated counts are not read
(query/stored_counts.py). No process waits for another, and open partitions have no trigger.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from asyncpg.exceptions import (
    DeadlockDetectedError,
    ForeignKeyViolationError,
    LockNotAvailableError,
    QueryCanceledError,
    UndefinedTableError,
)
from sqlalchemy import (
    Select,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    union,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of
from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import TimePartition, list_partitions
from inference_store.index.tables import (
    SIDE_TABLES,
    inference,
    metadata_key,
    metadata_presence,
    outdated_count,
    partition_count,
    partition_span,
)
from inference_store.inference.events import uid_floor
from inference_store.query.deadline import ScanRange

from .aggregates.operands import LABEL
from .aggregates.statement import Statement, count_unlabelled
from .bars import count_span
from .conditions import Names
from .conditions.combination import OfKey
from .plan import Plan, Query

# Begins the counts of a partition: from then on every writer outdates them.
#
# One transaction: insert the counts' rows · take the lock, which is free only while nobody writes ·
# create the trigger · commit. Earlier writers have committed; later ones fire the trigger, which
# finds the rows. So a count is of the rows that exist after the commit, or it is outdated.

QUIET: Final = timedelta(minutes=15)
"""A partition is counted again only if nothing was written for this long."""
_TRIGGER: Final = "outdate_counts"
_THERE: Final = text(
    "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(:leaf) AND tgname = :name"
)
# Each model by one look-up in the primary key.
_MODELS = (
    "WITH RECURSIVE known AS (SELECT min(model) AS model FROM {leaf} UNION ALL"
    " SELECT (SELECT min(model) FROM {leaf} WHERE model > known.model) FROM known"
    " WHERE known.model IS NOT NULL) SELECT model FROM known WHERE model IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class BegunCount:
    """The count of one model in one partition."""

    id: int
    scan_range: ScanRange


async def find_uncounted(
    connection: AsyncConnection, partition: TimePartition, *, quiet: timedelta
) -> list[int]:
    """Return the models of a partition that need counts: they have no valid ones, and nothing was
    written recently."""
    models = await connection.execute(text(_MODELS.format(leaf=_name_leaf(partition))))
    counted, outdated = partition_count.c, outdated_count.c
    late = exists().where(outdated.partition_count == counted.id)
    holds = counted.counted_at.is_not(None) & ~late
    # begun recently and not finished: by another process, or it took too long
    begun = counted.counted_at.is_(None) & (counted.begun_at > func.now() - quiet)
    written = late.where(outdated.at > func.now() - quiet)
    settled = select(counted.model).where(counted.span == partition.name, holds | begun | written)
    return sorted(set(models.scalars()) - set((await connection.execute(settled)).scalars()))


async def begin(engine: AsyncEngine, partition: TimePartition, model: int) -> BegunCount | None:
    """Begin the count of a model in a partition; return None if it is being dropped.

    Raises LockNotAvailableError while it is written.
    """
    scan_range = ScanRange(model, uid_floor(partition.lo), uid_floor(partition.hi))
    values = {"span": partition.name, "model": model, "lo": scan_range.lo, "hi": scan_range.hi}
    async with engine.connect() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        here = partition_count.c
        gone = delete(partition_count).where(here.span == partition.name, here.model == model)
        ids = (await connection.execute(gone.returning(here.id))).scalars().all()
        notes = outdated_count.c.partition_count.in_(ids)
        await connection.execute(delete(outdated_count).where(notes))
        inserted = insert(partition_count).values(values).returning(here.id)
        begun = BegunCount((await connection.execute(inserted)).scalar_one(), scan_range)
        await _create_trigger(connection, partition)
        # Checked under the lock: in a closed partition inferences are deleted first, and it may be
        # reopened.
        span = partition_span.c
        state = select(span.state).where(span.name == partition.name)
        if await connection.scalar(state) != "open":
            return None
        await connection.commit()
    return begun


async def _create_trigger(connection: AsyncConnection, partition: TimePartition) -> None:
    """Lock the partition, without waiting for a writer, and create the trigger.

    Nobody writes before the commit, and every later write is noted.
    """
    leaf = _name_leaf(partition)
    await connection.execute(text(f"LOCK TABLE {leaf} IN SHARE ROW EXCLUSIVE MODE NOWAIT"))
    if await connection.scalar(_THERE, {"leaf": leaf, "name": _TRIGGER}) is None:
        # Edits raise the revision; the deletion of an input changes nothing that is counted.
        await connection.execute(
            text(
                f"CREATE TRIGGER {_TRIGGER} AFTER INSERT OR DELETE OR UPDATE OF revision ON {leaf}"
                f" FOR EACH ROW EXECUTE FUNCTION outdate_counts('{partition.name}')"
            )
        )


def _name_leaf(partition: TimePartition) -> str:
    return f"{inference.name}_{partition.name}"


Step: TypeAlias = Callable[[], Awaitable[None]]
_ENDED: Final = timedelta(hours=1)
# Shorter than the time for which the counting process may be silent.
_LONGEST_SECONDS: Final = 60.0
# The partition is being written, was dropped or merged, or takes too long: it is counted later.
_NOT_NOW: Final = (
    DeadlockDetectedError,
    ForeignKeyViolationError,
    LockNotAvailableError,
    QueryCanceledError,
    UndefinedTableError,
)
# One process, which sorts in memory; the statement for the labels takes longest.
_SETTINGS: Final = {
    "statement_timeout": "60s",
    "max_parallel_workers_per_gather": "0",
    "work_mem": "32MB",
}


async def count_ended(
    engine: AsyncEngine,
    *,
    seconds: float,
    step: Step | None = None,
    before: datetime | None = None,
    quiet: timedelta = QUIET,
) -> bool:
    """Count partitions that ended before `before` (an hour ago); return False if time ran out.

    A partition is counted if it has no count, or an outdated one and no writes for `quiet`.
    `step` is called before each. A partition that is being written is skipped.
    """
    until = time.monotonic() + seconds
    async with engine.begin() as connection:
        if await is_distributed(connection):
            return True  # distributed tables have no triggers
        # notes of counts that are gone: their partition was dropped, or counted again while a
        # writer's note was not visible yet
        there = exists().where(partition_count.c.id == outdated_count.c.partition_count)
        await connection.execute(delete(outdated_count).where(~there))
        end = before or datetime.now(UTC) - _ENDED
        partitions = [one for one in await list_partitions(connection, hi=end) if one.hi <= end]
    for partition in partitions:
        if time.monotonic() >= until:
            return False
        try:
            await _count_partition(engine, partition, until, step, quiet)
        except DBAPIError as error:
            if not isinstance(cause_of(error), _NOT_NOW):
                raise
    return time.monotonic() < until


async def _count_partition(
    engine: AsyncEngine, partition: TimePartition, until: float, step: Step | None, quiet: timedelta
) -> None:
    async with engine.connect() as connection:
        models = await find_uncounted(connection, partition, quiet=quiet)
    for model in models:
        if time.monotonic() >= until:
            return
        if step is not None:
            await step()
        begun_count = await begin(engine, partition, model)
        if begun_count is not None:
            # a count that takes too long waits as an outdated one does
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_SECONDS), engine.begin() as connection:
                    await count(connection, begun_count)


async def count(connection: AsyncConnection, begun_count: BegunCount) -> None:
    """Count what exists now; if it changes between the statements, the count is outdated."""
    for name, value in _SETTINGS.items():
        await connection.execute(text(f"SET LOCAL {name} = '{value}'"))
    scan_range = begun_count.scan_range
    everything = Query(scan_range), Plan(scan_range)
    inferences = Statement().build(*everything)
    by_label = Statement(leads=LABEL, counts="value").build(*everything)
    labels = (await connection.execute(by_label.limit(MOST + 1))).all()
    unlabelled = await connection.execute(count_unlabelled(*everything))
    few = {str(number): n for number, n in labels} if len(labels) <= MOST else None
    counts: dict[str, Any] = {
        "inferences": await connection.scalar(inferences),
        "unlabelled": unlabelled.one()[1],
        "labels": few,
        "keys": await count_keys(connection, scan_range),
        "bars": await count_span(connection, scan_range),
    }
    here = partition_count.c.id == begun_count.id
    await connection.execute(
        update(partition_count).where(here).values(**counts, counted_at=func.clock_timestamp())
    )


MOST: Final = 2_000
"""Keys, or labels, of a model in one partition. If there are more, none is stored."""
_TABLES: Final = (*SIDE_TABLES.values(), metadata_presence)
Numbers = dict[str, Any]


async def count_keys(connection: AsyncConnection, scan_range: ScanRange) -> Numbers | None:
    """Count the inferences with each key, and with a value of it; None: there are too many keys."""
    numbers_by_key: dict[int, list[Any]] = {}
    for table in _TABLES:
        rows = (await connection.execute(_select_by_key(scan_range, table).limit(MOST + 1))).all()
        for row in rows:
            numbers_by_key.setdefault(row.key, []).append([row.sent, row.valued])
        if len(numbers_by_key) > MOST or len(rows) > MOST:
            return None
    again = {key for key, numbers in numbers_by_key.items() if len(numbers) > 1}
    for key in sorted(again | await _find_repeated(connection, list(numbers_by_key))):
        numbers_by_key[key] = [
            list((await connection.execute(_select_one_key(scan_range, key))).one())
        ]
    return {str(key): numbers[0] for key, numbers in numbers_by_key.items()}


def _select_by_key(scan_range: ScanRange, table: Any) -> Select[Any]:
    """Select the number of rows of each key in one table, where each inference has one row."""
    sent = func.count()
    valued = sent.filter(~table.c.is_null) if "is_null" in table.c else sent
    counted = select(table.c.key, sent.label("sent"), valued.label("valued"))
    return counted.where(scan_range.of(table)).group_by(table.c.key)


async def _find_repeated(connection: AsyncConnection, keys: Sequence[int]) -> set[int]:
    here = metadata_key.c
    several = here.several | here.name.contains("[]", autoescape=True)
    query = select(here.key).where(here.key.in_(keys), several)
    return set((await connection.execute(query)).scalars())


def _select_one_key(scan_range: ScanRange, key: int) -> Select[Any]:
    of_key = (OfKey(key, Names(), valued=valued, when=True) for valued in (False, True))
    uids = (union(*having.rows(scan_range)).subquery() for having in of_key)
    return select(*(select(func.count()).select_from(rows).scalar_subquery() for rows in uids))
