"""Postgres on several nodes: the place of each table if the database is a Citus coordinator.

Each model is on one shard. The tables of inferences are distributed by the model's integer and
co-located, so that a query of one model is one task on one node. Tables that such queries join are
reference tables, on every node. The accounting, policies and catalogues stay on the coordinator.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from asyncpg.exceptions import InsufficientPrivilegeError
from sqlalchemy import Engine, Table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import Database, cause_of, create_engine
from inference_store.index.schema import require_schema
from inference_store.index.tables import (
    PARTITIONED,
    awaiting_truth,
    blob_reference,
    erasing,
    erasure_held,
    label,
    metadata_key,
    model_key,
    model_label,
    registration,
    segment,
    tombstone,
)

Place = Literal["distributed", "reference"]
# Any other table stays on the coordinator: it is never joined with distributed ones.
DISTRIBUTED = (
    *(*PARTITIONED, erasing, erasure_held, tombstone, blob_reference, segment),
    awaiting_truth,
)
REFERENCE = (registration, metadata_key, label, model_key, model_label)
# A distributed table has no triggers, so nothing is counted ahead of its queries.
_UNCOUNTED = (
    "DELETE FROM partition_count",
    "DO $$ DECLARE leaf regclass; BEGIN"
    " FOR leaf IN SELECT tgrelid FROM pg_trigger WHERE tgname = 'outdate_counts' LOOP"
    " EXECUTE format('DROP TRIGGER outdate_counts ON %s', leaf); END LOOP; END $$",
)
_HAS_CITUS = text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
_FINAL: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()
_PLACED = text(
    "SELECT c.relname FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid"
    " WHERE (p.partmethod = 'h' OR p.repmodel = 't') AND c.relname = ANY(:names)"
)
_OURS = text(
    "SELECT DISTINCT application_name::text FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND application_name LIKE 'inference-store-%' ORDER BY 1"
)


class CannotDistribute(Exception):
    """The reason that the tables cannot be distributed, and the remedy. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """The changes that one table needs, in a transaction of its own."""

    table: str
    place: Place
    statements: tuple[str, ...]


def steps(placed: Collection[str], *, shards: int) -> list[Step]:
    """Return the missing steps; `placed`: the tables that are in their place."""
    first = DISTRIBUTED[0]
    missing: list[Step] = []
    for table in REFERENCE:
        created = f"SELECT create_reference_table('{table.name}')"
        missing.append(Step(table.name, "reference", (*_plain_numbers(table), created)))
    for table in DISTRIBUTED:
        how = f"colocate_with => '{first.name}'"
        if table is first:
            how = f"colocate_with => 'none', shard_count => {shards}"
        created = f"SELECT create_distributed_table('{table.name}', 'model', {how})"
        before = _UNCOUNTED if table is first else ()
        missing.append(Step(table.name, "distributed", (*before, created)))
    return [step for step in missing if step.table not in placed]


def _plain_numbers(table: Table) -> Iterator[str]:
    """Yield statements that turn identity columns into sequences: Citus takes bigint identities
    only."""
    for column in table.columns:
        if column.identity is not None:
            name, numbers = column.name, f"{table.name}_{column.name}_numbers"
            there = f"{table.name}_{name}_seq"
            yield f"CREATE SEQUENCE {numbers} AS integer"
            yield f"SELECT setval('{numbers}', last_value, is_called) FROM {there}"
            yield f"ALTER TABLE {table.name} ALTER COLUMN {name} DROP IDENTITY"
            default = f"nextval('{numbers}')"
            yield f"ALTER TABLE {table.name} ALTER COLUMN {name} SET DEFAULT {default}"
            yield f"ALTER SEQUENCE {numbers} OWNED BY {table.name}.{name}"


async def list_distributed(connection: AsyncConnection) -> set[str]:
    """Return the tables that are already distributed or on every node."""
    if not await connection.scalar(_HAS_CITUS):
        return set()
    names = [table.name for table in (*DISTRIBUTED, *REFERENCE)]
    return set((await connection.execute(_PLACED, {"names": names})).scalars())


async def is_distributed(connection: AsyncConnection) -> bool:
    """Check whether the partitioned tables are distributed, which limits their DDL."""
    return DISTRIBUTED[0].name in await list_distributed(connection)


async def is_distributed_cached(connection: AsyncConnection) -> bool:
    """Check whether the tables are distributed, and cache a final answer for the engine.

    It is final if they are distributed, or if there is no Citus. No service runs while they are
    being distributed.
    """
    engine = connection.sync_engine
    if engine not in _FINAL:
        tables = await list_distributed(connection)
        if not tables and await connection.scalar(_HAS_CITUS):
            return False
        _FINAL[engine] = DISTRIBUTED[0].name in tables
    return _FINAL[engine]


def is_known_whole(engine: Engine) -> bool:
    """Check whether the cache says that the tables of this engine are not distributed."""
    return _FINAL.get(engine) is False


async def require_extension(connection: AsyncConnection) -> None:
    """Raise CannotDistribute if Citus is not installed, or not loaded."""
    available = text("SELECT default_version FROM pg_available_extensions WHERE name = 'citus'")
    if await connection.scalar(available) is None:
        raise CannotDistribute(
            "This Postgres has no Citus: the extension is not installed on its server. Install"
            " Citus 12 or newer there, on every node; nothing was changed."
        )
    loaded = str(await connection.scalar(text("SHOW shared_preload_libraries")))
    if "citus" not in {name.strip() for name in loaded.split(",")}:
        raise CannotDistribute(
            "Citus is installed but not loaded: put it first into shared_preload_libraries"
            f" (now {loaded!r}) and restart Postgres; nothing was changed."
        )


async def require_quiet(connection: AsyncConnection) -> None:
    """Raise CannotDistribute while services are connected: rows are moved, not copied live."""
    running = list((await connection.execute(_OURS)).scalars())
    if running:
        raise CannotDistribute(
            f"Services still use the database: {', '.join(running)}. Stop them first; what they"
            " would ingest waits in Kafka. Nothing was changed."
        )


# Distributes the tables of a database on Citus: repeatable, one transaction for each table.
#
# The services are stopped meanwhile, so a crash between two tables leaves a database that nobody
# uses yet: run it again.

_LOCK = 7_302_014
Say = Callable[[str], None]


_WHAT = {"reference": "on every node", "distributed": "distributed by its model"}


async def distribute(database: Database, *, shards: int, say: Say) -> None:
    """Distribute the tables that are not yet distributed; `say` gets each step.

    Raises CannotDistribute, SchemaBehind.
    """
    engine = create_engine(database, application="inference-store-distribute", pool_size=1)
    try:
        await _prepare(engine)
        await spread(engine, shards=shards, say=say)
    finally:
        await engine.dispose()


async def spread(engine: AsyncEngine, *, shards: int, say: Say) -> None:
    """Bring every table to its place, in a database that has the extension."""
    async with engine.connect() as connection:
        missing = steps(await list_distributed(connection), shards=shards)
        if missing:
            await require_quiet(connection)
    for step in missing:
        await _run(engine, step)
        say(f"{step.table}: {_WHAT[step.place]}")
    done = "The tables are distributed" if missing else "The tables are distributed already"
    say(f"{done}. Point every service at the coordinator, and at no other node.")


async def _prepare(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await require_extension(connection)
        await require_schema(connection)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE EXTENSION IF NOT EXISTS citus"))
    except DBAPIError as error:
        if not isinstance(cause_of(error), InsufficientPrivilegeError):
            raise
        raise CannotDistribute(
            "This role may not run CREATE EXTENSION citus: have an administrator do it in this"
            " database, on every node; nothing was changed."
        ) from error


async def _run(engine: AsyncEngine, step: Step) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        if step.table in await list_distributed(connection):
            return  # another one was faster
        await connection.execute(text("SET LOCAL citus.multi_shard_modify_mode = 'sequential'"))
        for statement in step.statements:
            await connection.execute(text(statement))
