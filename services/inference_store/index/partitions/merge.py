"""Merges many small old partitions into few: planning costs 0.1 ms for each that a query visits.

Order: claim both in the catalogue, copy into new tables that nobody sees, then take the old ones
away, attach and move the catalogue, all in one transaction. Writers to the two partitions wait for
it (their late events are rare), readers only for its last step. If we wait longer than
`lock_timeout` for a lock, the merge is given up and tried again another day. See locks.py.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from sqlalchemy import Table, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import is_transient
from inference_store.index.distribution import is_distributed
from inference_store.index.tables import PARTITIONED, partition_span

from .creation import TARGET, bounds_of, like, settings
from .locks import claim, lock_catalogue, seize
from .time_partition import TimePartition

_MOST_DAYS = timedelta(days=366)


async def merge(
    engine: AsyncEngine, *, target: int = TARGET, older_than: timedelta, lock_timeout: str = "2s"
) -> int:
    """Merge neighbours that together hold less than half of `target`; return the number of merges.

    Only partitions that ended before `older_than` ago, and never across a gap in the catalogue.
    """
    merged = 0
    while pair := await _pair(engine, target, datetime.now(UTC) - older_than):
        try:
            async with engine.begin() as connection:
                await connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
                await lock_catalogue(connection)
                if not await claim(connection, [part.name for part in pair]):
                    break
                await _merge(connection, *pair)
        except Exception as error:  # only transient errors are handled
            if not is_transient(error):
                raise
            break
        merged += 1
    return merged


async def _pair(
    engine: AsyncEngine, target: int, before: datetime
) -> tuple[TimePartition, TimePartition] | None:
    catalogue = partition_span.c
    query = select(partition_span).where(catalogue.hi < before, catalogue.state == "open")
    async with engine.connect() as connection:
        if await is_distributed(connection):
            return None  # rows would go through the coordinator and back
        rows = (await connection.execute(query.order_by(catalogue.lo))).all()
    for older, newer in pairwise(rows):
        small = older.analysed_rows + newer.analysed_rows < target // 2
        if small and older.hi == newer.lo and newer.hi - older.lo <= _MOST_DAYS:
            return _partition(older), _partition(newer)
    return None


def _partition(row: object) -> TimePartition:
    return TimePartition(row.lo, row.hi, row.name)  # type: ignore[attr-defined]


async def _merge(connection: AsyncConnection, older: TimePartition, newer: TimePartition) -> None:
    whole = TimePartition.between(older.lo, newer.hi)
    tables = sorted(PARTITIONED, key=lambda table: table.name)
    for statement in _copies(tables, whole, (older, newer)):
        await connection.execute(text(statement))
    names = [table.name for table in tables]
    await seize(connection, [*names, *older.tables, *newer.tables])
    for statement in _swaps(tables, whole, (older, newer)):
        await connection.execute(text(statement))
    rows = await connection.execute(
        partition_span.delete()
        .where(partition_span.c.name.in_([older.name, newer.name]))
        .returning(partition_span.c.analysed_rows)
    )
    values = {"name": whole.name, "lo": whole.lo, "hi": whole.hi}
    total = sum(rows.scalars())
    await connection.execute(partition_span.insert().values(analysed_rows=total, **values))


def _copies(
    tables: Sequence[Table], whole: TimePartition, parts: Sequence[TimePartition]
) -> Iterator[str]:
    for table in tables:
        for part in parts:
            yield f"LOCK TABLE {table.name}_{part.name} IN SHARE MODE"
    for table in tables:
        new = f"{table.name}_{whole.name}"
        yield f"CREATE TABLE {new} ({like(table.name)}) {settings()}"
        for part in parts:
            yield f"INSERT INTO {new} SELECT * FROM {table.name}_{part.name}"
        yield f"ANALYZE {new}"


def _swaps(
    tables: Sequence[Table], whole: TimePartition, parts: Sequence[TimePartition]
) -> Iterator[str]:
    for table in tables:
        for part in parts:
            yield f"DROP TABLE {table.name}_{part.name}"
        new = f"{table.name}_{whole.name}"
        yield f"ALTER TABLE {table.name} ATTACH PARTITION {new} FOR VALUES {bounds_of(whole)}"
