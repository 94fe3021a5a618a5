"""Notices that a database was made anew, or brought back from a dump, while a service runs.

What the service remembers of it, such as the numbers of metadata keys, is then another one's.
"""

from typing import Any

from asyncpg.exceptions import InvalidCachedStatementError, UndefinedTableError
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from .database import cause_of

_IDENTITY = """
SELECT system_identifier, oid
FROM pg_control_system(), pg_database
WHERE datname = current_database()
"""


class DatabaseReplaced(Exception):
    """The database is another one than before."""


def refuse_another_database(engine: AsyncEngine) -> None:
    """Let the first connection to another database than before raise DatabaseReplaced.

    A database cannot be dropped while there are connections: whoever uses the new one connects.
    """
    known: list[Any] = []

    def check(connection: Any, _: object) -> None:
        identity = tuple(connection.run_async(lambda driver: driver.fetchrow(_IDENTITY)))
        before, known[:] = known[:], [identity]
        if before and before != known:
            connection.terminate()
            raise DatabaseReplaced("the database was made anew")

    event.listen(engine.sync_engine, "connect", check)


def is_replaced(error: BaseException) -> bool:
    """Check whether an error, or one of a group, says that the database or its tables are gone."""
    return _is_any(error, (DatabaseReplaced, UndefinedTableError, InvalidCachedStatementError))


def lacks_table(error: BaseException) -> bool:
    """Check whether an error, or one of a group, is that of a table that is not there."""
    return _is_any(error, (UndefinedTableError,))


def _is_any(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_any(inner, kinds) for inner in error.exceptions)
    return isinstance(error, kinds) or isinstance(cause_of(error), kinds)
