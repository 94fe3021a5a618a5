"""Bring the database's tables to this version."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from .database import create_engine

MIGRATIONS = Path(__file__).parents[3] / "migrations"
_LOCK = 7_302_001
Work = Callable[[Config], None]


def upgrade(dsn: str, revision: str = "head") -> None:
    """Run what is missing up to `revision`; two at once wait for each other."""
    asyncio.run(run(dsn, lambda config: command.upgrade(config, revision)))


def downgrade(dsn: str, revision: str = "base") -> None:
    """Undo down to `revision`. Deletes data; for tests and for trying out."""
    asyncio.run(run(dsn, lambda config: command.downgrade(config, revision)))


async def run(dsn: str, work: Work) -> None:
    """Open a connection, take the migration lock, and hand both to Alembic."""
    engine = create_engine(dsn, application="inference-store-migrate")
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            await connection.run_sync(_migrate, work)
    finally:
        await engine.dispose()


def _migrate(connection: Connection, work: Work) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    work(config)
