"""Counts partitions that have ended: one model of one partition after the other, in bounded
time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from asyncpg.exceptions import (
    DeadlockDetectedError,
    ForeignKeyViolationError,
    LockNotAvailableError,
    QueryCanceledError,
    UndefinedTableError,
)
from sqlalchemy import func, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of
from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import partition_count
from inference_store.query.scan_range import ScanRange

from .begin import QUIET, BegunCount, begin, delete_outdated, find_ended, find_uncounted
from .numbers import count_inferences, count_keys, count_labels, count_unlabelled

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


async def _no_step() -> None:
    """Do nothing between two steps."""


async def count_ended(
    engine: AsyncEngine,
    *,
    seconds: float,
    step: Step = _no_step,
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
        await delete_outdated(connection)
        partitions = await find_ended(connection, before or datetime.now(UTC) - _ENDED)
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
    engine: AsyncEngine, partition: TimePartition, until: float, step: Step, quiet: timedelta
) -> None:
    async with engine.connect() as connection:
        models = await find_uncounted(connection, partition, quiet=quiet)
    for model in models:
        if time.monotonic() >= until:
            return
        await step()
        for begun_count in await begin(engine, partition, [model]):
            # a count that takes too long waits as an outdated one does
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_SECONDS), engine.begin() as connection:
                    await count(connection, begun_count)


async def count(connection: AsyncConnection, begun_count: BegunCount) -> None:
    """Count what exists now; if it changes between the statements, the count is outdated."""
    for name, value in _SETTINGS.items():
        await connection.execute(text(f"SET LOCAL {name} = '{value}'"))
    scan_range = ScanRange(begun_count.model, begun_count.lo, begun_count.hi)
    counts: dict[str, Any] = {
        "inferences": await count_inferences(connection, scan_range),
        "unlabelled": await count_unlabelled(connection, scan_range),
        "labels": await count_labels(connection, scan_range),
        "keys": await count_keys(connection, scan_range),
    }
    here = partition_count.c.id == begun_count.id
    await connection.execute(
        update(partition_count).where(here).values(**counts, counted_at=func.clock_timestamp())
    )
