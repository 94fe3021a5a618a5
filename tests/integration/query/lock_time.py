"""The time of queries, passing only while a statement waits for a lock: on no machine too fast.

A statement that waits has the time that it may take at once. So a query comes as far as it can
before a partition that nobody can read, and then runs out of time.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime

import asyncpg
import pytest
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.distribution import is_distributed
from inference_store.index.partitions import TimePartition
from inference_store.query import deadline
from tests.integration.statements import SentStatement, record_statements
from tests.polling import until
from tests.stopped_clock import StoppedClock

from .held_partition import hold_partition

PATIENT_SECONDS = 300.0
"""The time of a query. Postgres measures it too, for each statement, and by its own clock."""
_WAITING = (
    "SELECT {pid} AS pid, query_start FROM {view}"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
_LIMIT = re.compile(r"statement_timeout = '(\d+)'")


@asynccontextmanager
async def hold_partition_until_late(
    engine: AsyncEngine, table: Table, at: datetime
) -> AsyncIterator[TimePartition]:
    """Hold the partition of a table in which an instant lies; the time of queries stands still,
    but while one of their statements waits for it.

    The connections of the queries are acquired from now on.
    """
    clock = StoppedClock()
    async with hold_partition(engine, table, at) as span:
        with pytest.MonkeyPatch.context() as patch, record_statements(engine) as sent:
            patch.setattr(deadline, "time", clock)
            ending = asyncio.create_task(_end_waiting(engine, clock, sent))
            try:
                yield span
            finally:
                ending.cancel()
                with suppress(asyncio.CancelledError):
                    await ending


async def _end_waiting(
    engine: AsyncEngine, clock: StoppedClock, sent: Sequence[SentStatement]
) -> None:
    """Let the time of each statement that waits be over, and cancel it, as Postgres does then."""
    async with engine.connect() as connection:
        everywhere = await is_distributed(connection)
    pid, view = ("global_pid", "citus_stat_activity") if everywhere else ("pid", "pg_stat_activity")
    address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    watcher = await asyncpg.connect(address)
    ended = set()

    async def end() -> None:
        for waiting in map(tuple, await watcher.fetch(_WAITING.format(pid=pid, view=view))):
            if waiting not in ended:
                ended.add(waiting)
                clock.now += _find_limit(sent)
                await watcher.execute(f"SELECT pg_cancel_backend({waiting[0]})")

    try:
        await until(end, lambda _: False, seconds=3600)  # until it is cancelled
    finally:
        await watcher.close()


def _find_limit(sent: Sequence[SentStatement]) -> float:
    """Return the seconds that the statement may take: the whole time if it has no limit."""
    for statement in reversed(sent):
        if limit := _LIMIT.search(statement.text):
            return int(limit[1]) / 1000
    return PATIENT_SECONDS
