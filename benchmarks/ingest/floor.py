"""The floor: the same rows, ready-made in Postgres' own binary form, written by plain COPY."""

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import asyncpg

from inference_store.inference.events import uid_floor

from .events import make_events
from .measure import CpuClock, Measured

TABLES = ("inference", "metadata_number", "metadata_string", "metadata_bool", "prediction")
_BATCH = 1000
Batch = Mapping[str, bytes]


async def read_batches(dsn: str, first: int, count: int) -> list[Batch]:
    """The rows of events `first` … as binary COPY gives them, 1,000 events a batch."""
    connection = await asyncpg.connect(dsn)
    starts = [_uid(number) for number in range(first, first + count, _BATCH)]
    bounds = [*starts, _uid(first + count)]
    batches: list[Batch] = []
    for lo, hi in pairwise(bounds):
        batches.append({table: await _rows(connection, table, lo, hi) for table in TABLES})
    await connection.close()
    return batches


def _uid(number: int) -> UUID:
    (event,) = make_events(number, 1)
    return uid_floor(event.received_at)


async def _rows(connection: asyncpg.Connection, table: str, lo: UUID, hi: UUID) -> bytes:
    out = io.BytesIO()
    query = f"SELECT * FROM {table} WHERE uid >= $1 AND uid < $2"
    await connection.copy_from_query(query, lo, hi, output=out, format="binary")
    return out.getvalue()


async def copy(
    dsn: str, batches: Sequence[Batch], servers: Mapping[str, Callable[[], Sequence[int]]]
) -> Measured:
    """Write them: one transaction a batch, nothing else."""
    connection = await asyncpg.connect(dsn)
    clock = CpuClock(servers)
    started = time.perf_counter()
    for batch in batches:
        async with connection.transaction():
            for table, rows in batch.items():
                await connection.copy_to_table(table, source=io.BytesIO(rows), format="binary")
        clock.look()
    seconds = time.perf_counter() - started
    used = clock.used()
    await connection.close()
    events = len(batches) * _BATCH
    cpu = {name: 1e6 * spent / events for name, spent in used.items()}
    return Measured("plain COPY of the same rows", events, seconds, cpu)


def median(runs: Sequence[Measured]) -> Measured:
    """The run in the middle (of two the slower), whose name says how far the others lie apart."""
    ordered = sorted(runs, key=lambda run: run.rate)
    middle = ordered[(len(ordered) - 1) // 2]
    spread = f"{ordered[0].rate:,.0f} to {ordered[-1].rate:,.0f}"
    return replace(middle, name=f"{middle.name}, median of {len(runs)} ({spread})")
