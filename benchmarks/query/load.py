"""Loading the population: the plan of its spans of time, which the catalogue's own function makes,
then COPY straight into each partition, its indexes only when its rows are there.

Every (span, table) is a transaction and a job of its own, done by three processes: a table that is
truncated and filled in one transaction is frozen, and costs no log where that is allowed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import numpy as np
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import key_registry, registrations
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import TimePartition, create, lock_catalogue
from inference_store.index.tables import partition_span, registration

from .population import DAYS, END, LABELS, MODELS, START, Chunk
from .rows import HEADER, KEYS, TABLES, TRAILER, Numbers

PROJECT = "streets"
CHUNK = 10_000
TARGET = 2_000_000
_PROCESSES = 3
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 12, 24, 24 * 7, 24 * 28))
# Of those received in a span this share came late: it lies behind all others, in no order.
_LATE = 0.01
# So much of everything is older than the thirty days by one month, in a span of its own.
_OLD = 0.001


@dataclass(frozen=True, slots=True)
class Filled:
    """A span, and the inferences received in it: `count` from number `first` on."""

    span: TimePartition
    lo: datetime
    hi: datetime
    first: int
    count: int

    def chunks(self) -> Iterator[Chunk]:
        """All of it, the late ones last."""
        late = int(self.count * _LATE)
        punctual = self.count - late
        for at in range(0, punctual, CHUNK):
            size = min(CHUNK, punctual - at)
            lo, hi = (self._at(number / punctual) for number in (at, at + size))
            yield Chunk(self.first + at, size, lo, hi)
        for at in range(punctual, self.count, CHUNK):
            size = min(CHUNK, self.count - at)
            yield Chunk(self.first + at, size, self.lo, self.hi, late=True)

    def _at(self, share: float) -> datetime:
        return self.lo + (self.hi - self.lo) * share


def plan(size: int) -> list[Filled]:
    """The spans of a population of that size, the oldest first: as wide as the catalogue would
    choose."""
    needed = timedelta(days=DAYS) / (size / TARGET)
    width = max((width for width in _WIDTHS if width <= needed), default=_WIDTHS[0])
    old = int(size * _OLD)
    first_lo = _EPOCH + (START - _EPOCH) // width * width
    filled_spans = [_filled(first_lo - max(width, timedelta(days=28)), first_lo, 0, old)]
    lo, first = first_lo, old
    while lo < END:
        hi = lo + width
        share = (min(hi, END) - START) / timedelta(days=DAYS)
        last = size if hi >= END else old + int((size - old) * share)
        filled_spans.append(_filled(lo, hi, first, last - first))
        lo, first = hi, last
    return filled_spans


def _filled(lo: datetime, hi: datetime, first: int, count: int) -> Filled:
    within = max(lo, START) if hi > START else lo, min(hi, END)
    return Filled(TimePartition.between(lo, hi), *within, first, count)


@dataclass(frozen=True, slots=True)
class _Job:
    dsn: str
    table: str
    filled: Filled
    numbers: Numbers

    @property
    def partition(self) -> str:
        return f"{self.table}_{self.filled.span.name}"


def load(dsn: str, size: int, *, models: Sequence[str] = MODELS, objects: bool = True) -> None:
    """Fill a migrated, empty database.

    `models`: whose shares are the population's, in turn. `objects`: whether the rows name any.
    """
    filled = plan(size)
    numbers = asyncio.run(_prepare(dsn, filled, models, objects=objects))
    jobs = [
        _Job(dsn, table, filled_span, numbers) for table in TABLES for filled_span in filled[::-1]
    ]
    began = time.perf_counter()
    with ProcessPoolExecutor(_PROCESSES) as pool:
        for done, report in enumerate(pool.map(_do, jobs), 1):
            seconds = time.perf_counter() - began
            print(f"{report}: {done} of {len(jobs)} after {seconds:.0f} s", flush=True)
    asyncio.run(_finish(dsn, filled))


async def _prepare(
    dsn: str, filled: list[Filled], places: Sequence[str], *, objects: bool
) -> Numbers:
    """Models, keys and labels in the dictionary; a span for each of those to fill."""
    engine = create_engine(dsn)
    try:
        models = await _models(engine)
        dictionary = Dictionary(engine)
        names = dict.fromkeys(models.values(), KEYS)
        labels = dict.fromkeys(models.values(), LABELS)
        await dictionary.resolve(names, labels)
        async with engine.begin() as connection:
            await lock_catalogue(connection)
            for filled_span in filled:
                await create(connection, filled_span.span)
    finally:
        await engine.dispose()
    return Numbers(
        np.array([models[name] for name in places]),
        np.array([dictionary.labels.numbers[name] for name in LABELS]),
        {name: dictionary.keys.numbers[name] for name in KEYS},
        objects=objects,
    )


async def _models(engine: AsyncEngine) -> dict[str, int]:
    rows = [
        {"model_id": name, "project_id": PROJECT, "registered_by": "api"}
        | {"name": name, "task_type": "Object Detection"}
        for name in MODELS
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(registration), rows)
        registered = await registrations.find_by_ids(connection, MODELS)
    return {name: registered_model.model for name, registered_model in registered.items()}


def _do(job: _Job) -> str:
    asyncio.run(_fill(job))
    return job.partition


async def _fill(job: _Job) -> None:
    connection = await asyncpg.connect(job.dsn, command_timeout=None)
    partition = job.partition
    try:
        await connection.execute("SET maintenance_work_mem = '512MB'")
        await connection.execute("SET max_parallel_maintenance_workers = 0")
        async with connection.transaction():
            await connection.execute(f"TRUNCATE {partition}")
            # Not ready is not written to; REINDEX makes them anew, and ready.
            await connection.execute(
                "UPDATE pg_index SET indisready = false WHERE indrelid = $1::regclass", partition
            )
            # asyncpg has no word for FREEZE, which COPY takes among its options in SQL.
            columns = ", ".join(TABLES[job.table].columns)
            await connection._copy_in(
                f"COPY {partition} ({columns}) FROM STDIN (FORMAT binary, FREEZE)",
                _rows(job),
                None,
            )
            await connection.execute(f"REINDEX TABLE {partition}")
        await connection.execute(f"VACUUM (ANALYZE) {partition}")
    finally:
        await connection.close()


async def _rows(job: _Job) -> AsyncIterator[bytes]:
    yield HEADER
    for chunk in job.filled.chunks():
        for some in TABLES[job.table].rows(chunk, job.numbers):
            yield some
    yield TRAILER


async def _finish(dsn: str, filled: list[Filled]) -> None:
    """The catalogue's counts and the key registry, from the rows; statistics of what is small."""
    engine = create_engine(dsn, pool_size=1)
    try:
        async with engine.begin() as connection:
            for filled_span in filled:
                here = partition_span.c.name == filled_span.span.name
                values = {"analysed_rows": filled_span.count}
                await connection.execute(partition_span.update().where(here).values(values))
            for table in dict.fromkeys(table for table, _ in KEYS.values()):
                await connection.execute(text(_build_seen_query(table)), _types(table))
            while await key_registry.fold(connection):
                pass
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            for table in ("metadata_key_seen", "metadata_key_delta", "registration", "label"):
                await connection.execute(text(f"VACUUM ANALYZE {table}"))
    finally:
        await engine.dispose()


# What the ingester would have counted.
_SEEN = """
INSERT INTO metadata_key_delta
    (model, key, type, flag, count, first_seen, last_seen, examples)
SELECT found.model, found.key, t.type, t.flag, found.count, :first, :last, found.examples
FROM (
    SELECT model, key, count(*) AS count, {examples} AS examples FROM {table} GROUP BY model, key
) AS found
JOIN metadata_key AS k USING (key)
JOIN unnest(CAST(:names AS text[]), CAST(:types AS text[]), CAST(:flags AS text[]))
    AS t (name, type, flag) ON t.name = k.name
"""


def _build_seen_query(table: str) -> str:
    examples = "'[]'::jsonb" if table == "metadata_presence" else "jsonb_build_array(min({0}))"
    value = "value::int::text" if table == "metadata_bool" else "value::text"
    return _SEEN.format(table=table, examples=examples.format(value))


def _types(table: str) -> dict[str, Any]:
    here = {name: kind for name, (where, kind) in KEYS.items() if where == table}
    flags = {"operator": "null"} if table == "metadata_presence" else {}
    absent = "present" if table == "metadata_presence" else ""
    return {
        "names": list(here),
        "types": list(here.values()),
        "flags": [flags.get(name, absent) for name in here],
        "first": START,
        "last": END,
    }
