"""Statements that every request asks: compiled once, and sent by the driver itself.

On its way to rows SQLAlchemy makes a key of the statement, finds what it compiled, binds, and wraps
each row: for a row by key that takes longer than Postgres does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from asyncpg.exceptions import InterfaceError, PostgresError
from sqlalchemy import Dialect, Executable, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ClauseElement

from inference_store.platform import traces

from .database import driver_now, is_autocommit, is_in_transaction
from .statement_spans import traced


class _Parameter(NamedTuple):
    name: str
    default: Any
    encode: Callable[[Any], Any] | None


class _Compiled(NamedTuple):
    sql: str
    parameters: Sequence[_Parameter]


class Prepared:
    """A statement whose parameters have names. Its rows are the driver's: by name or place."""

    def __init__(self, statement: Executable) -> None:
        self.statement = statement
        self._found: _Compiled | None = None

    async def fetch(
        self,
        connection: AsyncConnection,
        parameters: Mapping[str, Any],
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """The rows. Raises DBAPIError, as a statement of SQLAlchemy's does; TimeoutError after so
        many seconds, when Postgres is told to cancel it."""
        found = self._found or self._compile(connection.dialect)
        values = [
            value if encode is None or value is None else encode(value)
            for name, default, encode in found.parameters
            for value in (parameters.get(name, default),)
        ]
        return await fetch_now(connection, found.sql, values, seconds=seconds)

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled: Any = cast(ClauseElement, self.statement).compile(dialect=dialect)
        parameters = []
        for name in compiled.positiontup or ():
            kind = compiled.binds[name].type.dialect_impl(dialect)
            parameters.append(_Parameter(name, compiled.params[name], kind.bind_processor(dialect)))
        self._found = _Compiled(compiled.string, parameters)
        return self._found


async def fetch_now(
    connection: AsyncConnection, sql: str, values: Sequence[Any], *, seconds: float | None = None
) -> list[Any]:
    """The rows of a statement that the driver sends, in the connection's transaction. Raises
    DBAPIError, or TimeoutError as `fetch` does."""
    driver = driver_now(connection)
    if not is_in_transaction(driver) and not is_autocommit(connection):
        await connection.execute(text("SELECT"))  # SQLAlchemy begins it with its first statement
    try:
        if not traces.is_on():
            return list(await driver.fetch(sql, *values, timeout=seconds))
        with traced(connection.engine.url, sql):
            return list(await driver.fetch(sql, *values, timeout=seconds))
    except (PostgresError, InterfaceError, OSError) as exc:
        if isinstance(exc, TimeoutError) and seconds is not None:
            raise
        raise driver_error(driver, sql, exc) from exc


def driver_error(driver: Any, sql: str, error: BaseException) -> DBAPIError:
    """An error of the driver as SQLAlchemy has it."""
    lost = bool(driver.is_closed())
    return DBAPIError(sql, None, error, hide_parameters=True, connection_invalidated=lost)
