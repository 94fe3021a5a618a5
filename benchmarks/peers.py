"""`make bench-peers`: the same questions over the same inferences, to the store and to plain JSONB.

JSONB is one table of documents with one GIN index, as Postgres' own manual has it ("JSON types",
"jsonb indexing"). It advises `jsonb_path_ops` where only `@>`, `@?` and `@@` are asked: it is
smaller and faster. Such an index finds a value at a path by equality. It finds no range and no
prefix: those are tested, in plain operators, in documents found otherwise. Newest first comes from
the primary key, a uid that begins with its time.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson
from tests.servers.postgres import Postgres

from benchmarks.query.asker import PAGE, Answer, Asker, asking
from benchmarks.query.dataset import dataset, loaded, restore
from benchmarks.query.load import plan
from benchmarks.query.measure import measure
from benchmarks.query.population import (
    END,
    MODELS,
    SEGMENTS,
    VERSION,
    Chunk,
    InferenceDescription,
    describe,
)
from benchmarks.query.questions import Body, metadata, segment
from inference_store.inference.events import uid_floor

from .results import add_results_option, deliver, describe_machine, format_ms, format_table

KINDS: Final = ("page", "count")
# So many times the answers are held against each other before the clock is looked at.
_HELD: Final = 3
_DATABASE: Final = "peer_jsonb"
_TABLE: Final = "CREATE TABLE events (uid uuid NOT NULL, doc jsonb NOT NULL)"
_INDEXES: Final = (
    "ALTER TABLE events ADD PRIMARY KEY (uid)",
    "CREATE INDEX ON events USING gin (doc jsonb_path_ops)",
)
# The store is asked with the same: a plan for the values at hand, and no compiler.
_SESSION: Final = {"plan_cache_mode": "force_custom_plan", "jit": "off", "timezone": "UTC"}
_PIECE: Final = 5


@dataclass(frozen=True, slots=True)
class Put:
    """One question, in the words of both.

    `body` is the store's. JSONB is asked for what `contains` is contained in, and what the
    condition `tested` is true of, with a `{}` for each of its `values`. `before`: only what was
    received before then.
    """

    body: Body
    contains: Mapping[str, Any] = field(default_factory=dict)
    tested: str | None = None
    values: tuple[Any, ...] = ()
    before: datetime | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="inferences")
    parser.add_argument("--runs", type=int, default=50, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=240.0, help="most seconds a line")
    add_results_option(parser, "peers")
    arguments = parser.parse_args()
    loaded(arguments.size)
    results = asyncio.run(_run(arguments))
    deliver(arguments.results, results, *_format_figures(results))


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    size, how = arguments.size, {"runs": arguments.runs, "seconds": arguments.seconds}
    machine = describe_machine()
    # Loading the documents writes once, and the log is not to take the disk.
    with dataset(size, settings={"max_wal_size": "1GB"}) as (server, dsn):
        await restore(dsn, size)
        theirs = await fill_documents(server, size)
        async with asking(dsn) as asker, connect(theirs) as peer:
            lines = [
                {"question": name, "kind": kind, **await compare(name, asker, peer, kind, **how)}
                for name in QUESTIONS
                for kind in KINDS
            ]
        query = "SELECT pg_database_size(current_database())"
        sizes = [Postgres(address).ask(query) for address in (dsn, theirs)]
    return {"machine": machine, "inferences": size, "bytes": sizes, "lines": lines}


async def compare(
    name: str, asker: Asker, peer: "Jsonb", kind: str, *, runs: int, seconds: float
) -> dict[str, Any]:
    """Return figures of both, over the same values. Ends the run where they answer differently."""
    ask_store, ask_peer = getattr(asker, kind), getattr(peer, kind)
    for number in range(_HELD):
        put = draw_put(name, number)
        ours, theirs = await ask_store(put.body), await ask_peer(put)
        if not ours.whole or (ours.rows, ours.uids) != (theirs.rows, theirs.uids):
            sys.exit(f"{name}: other answers to {put}: {ours} and {theirs}")
    asks: dict[str, Callable[[int], Any]] = {
        "ours": lambda number: ask_store(draw_put(name, number).body),
        "theirs": lambda number: ask_peer(draw_put(name, number)),
    }
    lines = {}
    for who, ask in asks.items():
        line = await measure(name, kind, ask, runs=runs, seconds=seconds)
        print(f"{name}, {kind}, {who}: {line.median:.1f} ms ({line.runs} runs)", flush=True)
        lines[who] = asdict(line)
    return lines


def draw_put(name: str, number: int) -> Put:
    """Return the values of a run, the same for both."""
    return QUESTIONS[name](Random(f"{name} {number}"))


def _format_figures(results: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = (size / 2**30 for size in results["bytes"])
    yield (
        f"{results['inferences']:,} inferences: the store takes {ours:.1f} GiB, the table of"
        f" documents with its indexes {theirs:.1f} GiB."
        " Milliseconds; the last column is JSONB's median over the store's."
    )
    head = "question | | rows | store, median | p99 | JSONB and GIN, median | p99 | of the store"
    yield format_table(head, map(_list_cells, results["lines"]))


def _list_cells(line: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = line["ours"], line["theirs"]
    yield from (line["question"], line["kind"], f"{ours['rows']:,.0f}")
    yield from (format_ms(of[what]) for of in (ours, theirs) for what in ("median", "p99"))
    ratio = theirs["median"] / ours["median"]
    yield format(ratio, ".2g" if ratio < 10 else ",.0f")


def _equal(key: str, value: Any, before: datetime | None = None) -> Put:
    body = metadata((key, "eq", value))
    if before is not None:
        body |= {"received_at": {"to": before.isoformat().replace("+00:00", "Z")}}
    return Put(body, {"metadata": {key: value}}, before=before)


def _between(random: Random) -> Put:
    """A whole number lies between two, both included.

    As jsonpath it would take longer: the index takes it, finds nothing by it, and misleads.
    """
    low = random.randrange(999_000)
    return Put(
        metadata(("frame_number", "between", [low, low + 999])),
        tested="(doc #> '{{metadata,frame_number}}')::int BETWEEN {} AND {}",
        values=(low, low + 999),
    )


def _at_path(random: Random) -> Put:
    angle = 100 + random.randrange(55)
    return Put(
        metadata(("camera_position.angle", "eq", angle)),
        {"metadata": {"camera_position": {"angle": angle}}},
    )


def _detected(random: Random) -> Put:
    above = round(0.9 + 0.05 * random.random(), 4)
    condition = f'@.label == "person" && @.score > {above}'
    return Put(
        {"prediction": {"label": "person", "score": {"gt": above}}},
        tested="doc @@ {}",
        values=(f"exists($.predictions[*] ? ({condition}))",),
    )


def _at_night(random: Random) -> Put:
    pattern = f"street-{random.randrange(SEGMENTS // 100):04d}/%"
    return Put(
        metadata(("segment", "like", pattern), ("night", "eq", True)),
        {"metadata": {"night": True}},
        "doc #>> '{{metadata,segment}}' LIKE {}",
        (pattern,),
    )


QUESTIONS: Final[Mapping[str, Callable[[Random], Put]]] = {
    "equality, 2 %": lambda r: _equal(
        "data_source", "camera-0001", END - timedelta(milliseconds=r.randrange(72 * 3_600_000))
    ),
    "equality, 0.001 %": lambda r: _equal("segment", segment(r)),
    "int range, 0.1 %": _between,
    "JSON path, 0.4 %": _at_path,
    "label and score": _detected,
    "AND of two: prefix, boolean": _at_night,
}


async def fill_documents(server: Postgres, size: int, *, processes: int = 2) -> str:
    """Fill the database of documents unless it is there; return its address.

    Its comment is written last, so a database without one was not loaded to the end.
    """
    stamp = f"population {VERSION}, {size} documents"
    comment = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = "
    if server.ask(f"{comment} '{_DATABASE}'") != stamp:
        print(f"filling {_DATABASE}: {stamp} …", flush=True)
        server.drop_database(_DATABASE)
        await _load(server.create_database(_DATABASE), size, processes)
        server.execute(f"COMMENT ON DATABASE {_DATABASE} IS '{stamp}'", "CHECKPOINT")
    return server.dsn_of(_DATABASE)


async def _load(dsn: str, size: int, processes: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_TABLE)
        every = [chunk for filled in plan(size) for chunk in filled.chunks()]
        pieces = [every[at : at + _PIECE] for at in range(0, len(every), _PIECE)]
        with ProcessPoolExecutor(processes) as pool:
            for _ in pool.map(_copy, [dsn] * len(pieces), pieces):
                pass
        await connection.execute("SET maintenance_work_mem = '512MB'")
        for statement in (*_INDEXES, "VACUUM (ANALYZE) events"):
            await connection.execute(statement, timeout=3600)
    finally:
        await connection.close()


def _copy(dsn: str, piece: Sequence[Chunk]) -> None:
    asyncio.run(_copy_piece(dsn, piece))


async def _copy_piece(dsn: str, piece: Sequence[Chunk]) -> None:
    connection = await asyncpg.connect(dsn)
    records = (
        (UUID(bytes=uid.tobytes()), _format_document(inference))
        for chunk in piece
        for uid, inference in zip(chunk.uid, describe(chunk), strict=True)
    )
    try:
        await connection.copy_records_to_table("events", records=records, columns=("uid", "doc"))
    finally:
        await connection.close()


def _format_document(inference: InferenceDescription) -> str:
    members = {
        "inference_id": f"frame-{inference.number:09d}",
        "model": MODELS[inference.model_number],
        "received_at": inference.received_at,
        "ok": inference.predictions is not None,
        "metadata": inference.metadata,
        "predictions": inference.predictions or [],
    }
    return orjson.dumps(members).decode()


@dataclass(frozen=True, slots=True)
class Jsonb:
    """A client of the table of documents."""

    connection: asyncpg.Connection

    async def page(self, put: Put) -> Answer:
        """Return the newest 50, as documents."""
        condition, values = _build_condition(put)
        query = f"SELECT uid, doc FROM events WHERE {condition} ORDER BY uid DESC LIMIT {PAGE}"
        began = time.perf_counter()
        rows = await self.connection.fetch(query, *values)
        documents = [orjson.loads(row["doc"]) for row in rows]
        seconds = time.perf_counter() - began
        uids = tuple(str(row["uid"]) for row in rows)
        return Answer(seconds, len(rows), uids=uids, body=documents)

    async def count(self, put: Put) -> Answer:
        """Count them."""
        condition, values = _build_condition(put)
        query = f"SELECT count(*) FROM events WHERE {condition}"
        began = time.perf_counter()
        number = await self.connection.fetchval(query, *values)
        return Answer(time.perf_counter() - began, number)


def _build_condition(put: Put) -> tuple[str, list[Any]]:
    contained = orjson.dumps({"model": MODELS[0], **put.contains}).decode()
    sql, values = "doc @> $1", list[Any]([contained])
    if put.tested is not None:
        places = [f"${len(values) + 1 + at}" for at in range(len(put.values))]
        sql += f" AND {put.tested.format(*places)}"
        values += put.values
    if put.before is not None:
        values.append(uid_floor(put.before))
        sql += f" AND uid < ${len(values)}"
    return sql, values


@asynccontextmanager
async def connect(dsn: str) -> AsyncIterator[Jsonb]:
    """A client of the database at that address."""
    connection = await asyncpg.connect(dsn, server_settings=_SESSION)
    try:
        yield Jsonb(connection)
    finally:
        await connection.close()


if __name__ == "__main__":
    main()
