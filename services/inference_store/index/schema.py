"""The schema of a database, and the one that this version needs.

Migrations only add (expand); unused parts are removed in a later release (contract). So the version
before works while a migration runs and after it, also after a rollback.

Revisions are numbered, 0001, 0002 …; a name that sorts later is newer. Services ask here, without
Alembic: it would cost each of them 13 MiB.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import Database, create_engine, is_transient
from inference_store.inference.errors import SchemaBehind
from inference_store.platform.settings import PostgresSettings

# In the image they lie in the package, in a source tree at its root.
_PACKED = Path(__file__).parents[1] / "migrations"
MIGRATIONS = _PACKED if _PACKED.is_dir() else Path(__file__).parents[3] / "migrations"
_log = structlog.get_logger()


class DatabaseUnavailable(Exception):
    """Postgres did not answer in time."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database (None: no tables of ours) and the one that this version needs."""

    revision: str | None
    needed: str

    @property
    def behind(self) -> bool:
        """Check whether it is older than needed, so that this version cannot work on it."""
        return self.revision is None or self.revision < self.needed

    @property
    def ahead(self) -> bool:
        """Check whether a later version made it; this one works on it: migrations only add."""
        return self.revision is not None and self.revision > self.needed

    def __str__(self) -> str:
        if self.revision is None:
            has = "The database has no tables of the store"
        else:
            has = f"The database's schema is {self.revision}"
        if self.behind:
            return f"{has}; this version needs {self.needed}: run `inference-store migrate`."
        if self.ahead:
            return f"{has}, newer than this version's {self.needed}; it works with both."
        return f"{has}, as this version needs it."


def newest(migrations: Path = MIGRATIONS) -> str:
    """Return the revision of the newest migration of this version."""
    names = [path.name for path in (migrations / "versions").glob("[0-9]*.py")]
    if not names:
        raise FileNotFoundError(f"there are no migrations in {migrations}: the folder is missing")
    return max(names).split("_")[0]


async def schema_of(connection: AsyncConnection, migrations: Path = MIGRATIONS) -> Schema:
    """Read the database's schema, and compare it with the one that this version needs."""
    there = text("SELECT to_regclass('alembic_version') IS NOT NULL")
    revision: str | None = None
    if await connection.scalar(there):
        revision = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return Schema(revision, newest(migrations))


async def require_schema(connection: AsyncConnection) -> None:
    """Raise SchemaBehind if it is too old; a newer schema is fine, and logged."""
    schema = await schema_of(connection)
    if schema.behind:
        raise SchemaBehind(str(schema))
    if schema.ahead:
        _log.info("the schema is newer", action="schema_ahead", detail=str(schema))


@asynccontextmanager
async def migrated(
    settings: PostgresSettings, command: str, *, pool_size: int = 1
) -> AsyncIterator[AsyncEngine]:
    """Return the engine of a command, as long as the block runs. Raises SchemaBehind."""
    application = f"inference-store-{command}"
    engine = create_engine(settings, application=application, pool_size=pool_size)
    try:
        async with engine.connect() as connection:
            await require_schema(connection)
        yield engine
    finally:
        await engine.dispose()


async def wait_for_schema(database: Database, *, wait_seconds: float = 0.0) -> Schema:
    """Return the database's schema as soon as it is not behind, or when the time is up.

    Raises DatabaseUnavailable.
    """
    until = time.monotonic() + wait_seconds
    engine = create_engine(database, application="inference-store-migrate", pool_size=1)
    try:
        while True:
            late = time.monotonic() >= until
            try:
                async with engine.connect() as connection:
                    schema = await schema_of(connection)
            except (DBAPIError, OSError) as error:
                if late or not is_transient(error):
                    raise DatabaseUnavailable(f"Postgres does not answer: {error}"[:500]) from error
            else:
                if late or not schema.behind:
                    return schema
            await asyncio.sleep(1.0)
    finally:
        await engine.dispose()
