"""Transactions of one call, of some statements or of one query each, in the database of a test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Executable, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def opened(database: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database, **options)
    try:
        yield engine
    finally:
        await engine.dispose()


async def transact(
    engine: AsyncEngine,
    function: Callable[Concatenate[AsyncConnection, P], Awaitable[T]],
    *arguments: P.args,
    **more: P.kwargs,
) -> T:
    async with engine.begin() as connection:
        return await function(connection, *arguments, **more)


async def execute(engine: AsyncEngine, *statements: str | Executable, **values: Any) -> None:
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(_parse(statement), values or None)


async def fetch(engine: AsyncEngine, query: str | Executable) -> list[Any]:
    """Return the rows that a query finds; of a single column, its values."""
    async with engine.connect() as connection:
        rows = (await connection.execute(_parse(query))).all()
    return [row[0] if len(row) == 1 else row for row in rows]


async def scalar(engine: AsyncEngine, query: str | Executable) -> Any:
    async with engine.connect() as connection:
        return await connection.scalar(_parse(query))


class Database:
    """What has an engine, with the functions above as methods."""

    engine: AsyncEngine

    async def transact(
        self,
        function: Callable[Concatenate[AsyncConnection, P], Awaitable[T]],
        *arguments: P.args,
        **more: P.kwargs,
    ) -> T:
        return await transact(self.engine, function, *arguments, **more)

    async def execute(self, *statements: str | Executable, **values: Any) -> None:
        await execute(self.engine, *statements, **values)

    async def fetch(self, query: str | Executable) -> list[Any]:
        return await fetch(self.engine, query)

    async def scalar(self, query: str | Executable) -> Any:
        return await scalar(self.engine, query)


def _parse(statement: str | Executable) -> Executable:
    return text(statement) if isinstance(statement, str) else statement
