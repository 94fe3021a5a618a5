"""Distributes the tables of a database on Citus: repeatable, one transaction for each table.

The services are stopped meanwhile, so a crash between two tables leaves a database that nobody
uses yet: run it again.
"""

from collections.abc import Callable

from asyncpg.exceptions import InsufficientPrivilegeError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from .database import Database, cause_of, opened
from .distribution import (
    CannotDistribute,
    Step,
    list_distributed,
    require_extension,
    require_quiet,
    steps,
)
from .schema import require_schema

_LOCK = 7_302_014
Say = Callable[[str], None]


_WHAT = {"reference": "on every node", "distributed": "distributed by its model"}


async def distribute(database: Database, *, shards: int, say: Say) -> None:
    """Distribute the tables that are not yet distributed; `say` gets each step.

    Raises CannotDistribute, SchemaBehind.
    """
    engine = opened(database, application="inference-store-distribute")
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
