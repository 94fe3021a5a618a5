"""Which schema a database has, and which one this version needs.

Migrations only add (expand); what is no longer used goes in a later release (contract). So the
version before runs on while a migration runs and after it, and so does a rollback.

Revisions are numbered, 0001, 0002 …; a name that sorts later is newer. Services ask here, without
Alembic: it would cost each of them 13 MiB.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.inference.errors import SchemaBehind

from .database import Database, is_trouble, opened

# In the image they lie in the package, in a source tree at its root.
_PACKED = Path(__file__).parents[1] / "migrations"
MIGRATIONS = _PACKED if _PACKED.is_dir() else Path(__file__).parents[3] / "migrations"
_log = structlog.get_logger()


class DatabaseAway(Exception):
    """Postgres did not answer in time."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database has (None: no tables of ours) and what this version needs."""

    found: str | None
    needed: str

    @property
    def behind(self) -> bool:
        """Older than needed: this version cannot work on it."""
        return self.found is None or self.found < self.needed

    @property
    def ahead(self) -> bool:
        """Made by a later version: this one works on it, for migrations only add."""
        return self.found is not None and self.found > self.needed

    def __str__(self) -> str:
        if self.found is None:
            has = "The database has no tables of the store"
        else:
            has = f"The database's schema is {self.found}"
        if self.behind:
            return f"{has}; this version needs {self.needed}: run `inference-store migrate`."
        if self.ahead:
            return f"{has}, newer than this version's {self.needed}; it works with both."
        return f"{has}, as this version needs it."


def newest(migrations: Path = MIGRATIONS) -> str:
    """The revision of the newest migration that this version brings."""
    names = [path.name for path in (migrations / "versions").glob("[0-9]*.py")]
    if not names:
        raise FileNotFoundError(f"there are no migrations in {migrations}: the folder is missing")
    return max(names).split("_")[0]


async def schema_of(connection: AsyncConnection, migrations: Path = MIGRATIONS) -> Schema:
    """The database's schema, beside the one that this version needs."""
    there = text("SELECT to_regclass('alembic_version') IS NOT NULL")
    found: str | None = None
    if await connection.scalar(there):
        found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return Schema(found, newest(migrations))


async def require_schema(connection: AsyncConnection) -> None:
    """Raises SchemaBehind; a newer schema is fine, and said in the log."""
    schema = await schema_of(connection)
    if schema.behind:
        raise SchemaBehind(str(schema))
    if schema.ahead:
        _log.info("the schema is newer", action="schema_ahead", detail=str(schema))


async def wait_for_schema(database: Database, *, wait_seconds: float = 0.0) -> Schema:
    """The database's schema, as soon as it is not behind, or what it is when the time is up.

    Raises DatabaseAway.
    """
    until = time.monotonic() + wait_seconds
    while True:
        late = time.monotonic() >= until
        try:
            schema = await _looked_up(database)
        except (DBAPIError, OSError) as error:
            if late or not is_trouble(error):
                raise DatabaseAway(f"Postgres does not answer: {error}"[:500]) from error
        else:
            if late or not schema.behind:
                return schema
        await asyncio.sleep(1.0)


async def _looked_up(database: Database) -> Schema:
    engine = opened(database, application="inference-store-migrate")
    try:
        async with engine.connect() as connection:
            return await schema_of(connection)
    finally:
        await engine.dispose()
