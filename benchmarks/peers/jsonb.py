"""Plain JSONB: one table of documents with one GIN index, as Postgres' own manual has it.

The manual ("JSON types", "jsonb indexing") advises `jsonb_path_ops` where only `@>`, `@?` and
`@@` are asked: it is smaller and faster. Such an index finds a value at a path by equality. It
finds no range and no prefix: those are tested, in plain operators, in documents found otherwise.
Newest first comes from the primary key, a uid that begins with its time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from benchmarks.query.asker import PAGE, Answer
from benchmarks.query.population import Chunk
from inference_store.inference.events import uid_floor

from .documents import format_document, list_chunks, list_inferences
from .questions import MODEL, Put

DATABASE = "peer_jsonb"
TABLE = "CREATE TABLE events (uid uuid NOT NULL, doc jsonb NOT NULL)"
INDEXES = (
    "ALTER TABLE events ADD PRIMARY KEY (uid)",
    "CREATE INDEX ON events USING gin (doc jsonb_path_ops)",
)
# Ours are asked with the same: a plan for the values at hand, and no compiler.
_SESSION = {"plan_cache_mode": "force_custom_plan", "jit": "off", "timezone": "UTC"}
_PIECE = 5


async def load(dsn: str, size: int, *, processes: int = 2) -> None:
    """Fill an empty database."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE)
        every = list_chunks(size)
        pieces = [every[at : at + _PIECE] for at in range(0, len(every), _PIECE)]
        if processes > 1:
            with ProcessPoolExecutor(processes) as pool:
                for _ in pool.map(_copy, [dsn] * len(pieces), pieces):
                    pass
        else:
            for piece in pieces:
                await _copy_pieces(dsn, piece)
        await connection.execute("SET maintenance_work_mem = '512MB'")
        for index in INDEXES:
            await connection.execute(index, timeout=3600)
        await connection.execute("VACUUM (ANALYZE) events", timeout=3600)
    finally:
        await connection.close()


def _copy(dsn: str, piece: Sequence[Chunk]) -> None:
    asyncio.run(_copy_pieces(dsn, piece))


async def _copy_pieces(dsn: str, piece: Sequence[Chunk]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.copy_records_to_table(
            "events", records=_records(piece), columns=("uid", "doc")
        )
    finally:
        await connection.close()


def _records(piece: Sequence[Chunk]) -> Iterator[tuple[UUID, str]]:
    for chunk in piece:
        for uid, inference in list_inferences(chunk):
            yield uid, format_document(inference)


def build_condition(put: Put) -> tuple[str, list[Any]]:
    """Return the condition in SQL, and its values."""
    contained = orjson.dumps({"model": MODEL, **put.contains}).decode()
    sql, values = "doc @> $1", list[Any]([contained])
    if put.tested is not None:
        places = [f"${len(values) + 1 + at}" for at in range(len(put.values))]
        sql += f" AND {put.tested.format(*places)}"
        values += put.values
    if put.before is not None:
        values.append(uid_floor(put.before))
        sql += f" AND uid < ${len(values)}"
    return sql, values


@dataclass(frozen=True, slots=True)
class Jsonb:
    """A client of that table."""

    connection: asyncpg.Connection

    async def page(self, put: Put) -> Answer:
        """Return the newest 50, as documents."""
        condition, values = build_condition(put)
        query = f"SELECT uid, doc FROM events WHERE {condition} ORDER BY uid DESC LIMIT {PAGE}"
        began = time.perf_counter()
        rows = await self.connection.fetch(query, *values)
        documents = [orjson.loads(row["doc"]) for row in rows]
        seconds = time.perf_counter() - began
        uids = tuple(str(row["uid"]) for row in rows)
        return Answer(seconds, len(rows), uids=uids, body=documents)

    async def count(self, put: Put) -> Answer:
        """Count them."""
        condition, values = build_condition(put)
        query = f"SELECT count(*) FROM events WHERE {condition}"
        began = time.perf_counter()
        number = await self.connection.fetchval(query, *values)
        return Answer(time.perf_counter() - began, number)


@asynccontextmanager
async def connect(dsn: str) -> AsyncIterator[Jsonb]:
    """A client of the database at that address."""
    connection = await asyncpg.connect(dsn, server_settings=_SESSION)
    try:
        yield Jsonb(connection)
    finally:
        await connection.close()
