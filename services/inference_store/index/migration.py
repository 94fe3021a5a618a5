"""Migrates the database to this version's schema, while the version before goes on working.

Each migration is a transaction of its own. No statement waits longer for a lock than
`_LOCK_TIMEOUT`, because everybody else queues behind it: it is then rolled back and retried, until
the deadline. An advisory lock of the session allows one migrator at a time.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from .database import Database, DatabaseMissing, cause_of, create_engine, is_transient
from .schema import MIGRATIONS, schema_of

_LOCK = 7_302_001
_LOCK_TIMEOUT = "2s"
_PAUSE_SECONDS = (0.5, 1.0, 2.0, 5.0)
_HOLDER = text(
    "SELECT l.pid, a.application_name, a.backend_start FROM pg_locks l"
    " JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted"
    " AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = :lock"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
Say = Callable[[str], None]


class MigrationBusy(Exception):
    """A migration could not get a lock or a connection before the deadline."""


def upgrade(
    database: Database,
    revision: str = "head",
    *,
    wait_seconds: float = 600.0,
    say: Say = lambda _: None,
    migrations: Path = MIGRATIONS,
) -> None:
    """Run missing migrations up to `revision`. `say` gets each step.

    It waits for Postgres, for another migrator and for locks, at most `wait_seconds`: then it
    raises MigrationBusy, and finished migrations stay. Raises DatabaseMissing at once.
    """
    until = time.monotonic() + wait_seconds
    asyncio.run(_Migrator(database, until, say, migrations).upgrade(revision))


class _Migrator:
    def __init__(self, database: Database, until: float, say: Say, migrations: Path) -> None:
        self._engine = create_engine(database, application="inference-store-migrate", pool_size=1)
        self._until = until
        self._say = say
        self._migrations = migrations
        self._config = Config()
        self._config.set_main_option("script_location", str(migrations))

    async def upgrade(self, revision: str) -> None:
        """Run every missing migration, one after the other, while it holds the migration lock.

        After trouble, usually a lock timeout, it begins again: finished migrations are known.
        """
        tries = 0
        try:
            while True:
                try:
                    async with self._engine.connect() as connection:
                        await self._take_lock(connection)
                        wait = text(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
                        await connection.execute(wait)
                        await connection.commit()
                        return await self._upgrade(connection, revision)
                except DatabaseMissing:
                    raise
                except (DBAPIError, OSError) as error:
                    if not is_transient(error):
                        raise
                    await self._pause(error, tries)
                tries += 1
        finally:
            await self._engine.dispose()

    async def _upgrade(self, connection: AsyncConnection, revision: str) -> None:
        schema = await schema_of(connection, self._migrations)
        await connection.commit()
        if schema.ahead:
            self._say(f"{schema} Nothing to do.")
            return
        scripts = ScriptDirectory.from_config(self._config)
        missing = [*scripts.iterate_revisions(revision, schema.revision or "base")][::-1]
        for script in missing:
            await self._step(connection, script)
        last = missing[-1].revision if missing else schema.revision
        self._say(f"The schema is {last}{'.' if missing else ' already: nothing to do.'}")

    async def _step(self, connection: AsyncConnection, script: Script) -> None:
        reason = getattr(script.module, "contract", None)
        kind = f"takes away: {reason}" if reason else "only adds"
        self._say(f"{script.revision}: {(script.doc or '').splitlines()[0]} ({kind})")
        started = time.monotonic()

        def work(sync: Connection) -> None:
            self._config.attributes["connection"] = sync
            command.upgrade(self._config, script.revision)

        await connection.run_sync(work)
        self._say(f"{script.revision}: done in {time.monotonic() - started:.1f} s")

    async def _take_lock(self, connection: AsyncConnection) -> None:
        is_reported = False
        take = text("SELECT pg_try_advisory_lock(:lock)")
        while not await connection.scalar(take, {"lock": _LOCK}):
            holder = (await connection.execute(_HOLDER, {"lock": _LOCK})).first()
            await connection.commit()
            who = f" (process {holder[0]}, since {holder[2]:%H:%M:%S} UTC)" if holder else ""
            seconds = self._compute_remaining(f"Another migration still runs{who}")
            if not is_reported:
                self._say(f"Another migration runs{who}: waiting up to {seconds:.0f} s.")
                is_reported = True
            await asyncio.sleep(min(0.5, seconds))
        await connection.commit()

    async def _pause(self, error: Exception, tries: int) -> None:
        if isinstance(cause_of(error), LockNotAvailableError):
            what = f"Other transactions hold a lock that it needs for longer than {_LOCK_TIMEOUT}"
        else:
            what = f"Postgres does not answer: {str(error).splitlines()[0]}"
        seconds = self._compute_remaining(what)
        pause = min(_PAUSE_SECONDS[min(tries, len(_PAUSE_SECONDS) - 1)], seconds)
        self._say(f"{what}; again in {pause:.1f} s, for {seconds:.0f} s more.")
        await asyncio.sleep(pause)

    def _compute_remaining(self, what: str) -> float:
        """Return the seconds until the deadline. Raises MigrationBusy after it."""
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise MigrationBusy(
                f"{what}. Nothing is half done; run `inference-store migrate` again."
            )
        return seconds
