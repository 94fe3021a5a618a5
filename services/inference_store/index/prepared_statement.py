"""Statements of every request: compiled once, and sent by the driver itself.

For each execution SQLAlchemy computes a cache key, looks up the compiled statement, binds, and
wraps each row: to read a row by its key, that takes longer than Postgres does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from asyncpg.exceptions import InterfaceError, PostgresError
from sqlalchemy import Dialect, Executable, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ClauseElement

from inference_store.index.database import driver_now, is_autocommit, is_in_transaction, traced
from inference_store.platform import traces


class _Parameter(NamedTuple):
    name: str
    default: Any
    encode: Callable[[Any], Any] | None


class _Compiled(NamedTuple):
    sql: str
    parameters: Sequence[_Parameter]


class PreparedStatement:
    """A statement with named parameters. Its rows are the driver's: by name or position."""

    def __init__(self, statement: Executable) -> None:
        self.statement = statement
        self._compiled: _Compiled | None = None

    async def fetch(
        self,
        connection: AsyncConnection,
        parameters: Mapping[str, Any],
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """Return the rows. Raises DBAPIError, as a statement of SQLAlchemy does.

        After `seconds`, Postgres is told to cancel it, and it raises TimeoutError.
        """
        compiled = self._compiled or self._compile(connection.dialect)
        values = [
            value if encode is None or value is None else encode(value)
            for name, default, encode in compiled.parameters
            for value in (parameters.get(name, default),)
        ]
        return await fetch_now(connection, compiled.sql, values, seconds=seconds)

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled: Any = cast(ClauseElement, self.statement).compile(dialect=dialect)
        parameters = []
        for name in compiled.positiontup or ():
            kind = compiled.binds[name].type.dialect_impl(dialect)
            parameters.append(_Parameter(name, compiled.params[name], kind.bind_processor(dialect)))
        self._compiled = _Compiled(compiled.string, parameters)
        return self._compiled


async def fetch_now(
    connection: AsyncConnection, sql: str, values: Sequence[Any], *, seconds: float | None = None
) -> list[Any]:
    """Return the rows of a statement that the driver sends, in the connection's transaction.

    Raises DBAPIError, or TimeoutError as `fetch` does.
    """
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
    """Return an error of the driver as SQLAlchemy's."""
    lost = bool(driver.is_closed())
    return DBAPIError(sql, None, error, hide_parameters=True, connection_invalidated=lost)
