"""Builds and compiles statements: large ones in a thread, beside the event loop.

A filter of hundreds of comparisons takes the better part of a second to become SQL. One thread
builds all such statements, one after the other: the rest of the processor is for other requests.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ClauseElement

from inference_store.index.prepared_statement import PreparedStatement

Building: TypeAlias = Executable | PreparedStatement | Callable[[], Executable]
"""A statement, or a function that builds it."""


_MOST_COMPILED = 32


class NotBegun(TimeoutError):
    """The statement waited for others to be built until its time was over."""


@dataclass(frozen=True, slots=True)
class Built:
    """A statement to execute. `explained`: its EXPLAIN, if that is requested."""

    statement: Executable | PreparedStatement
    explained: Executable | PreparedStatement | None


async def build_statement(
    connection: AsyncConnection,
    building: Building,
    explain: Callable[[Executable], Executable] | None = None,
    *,
    beside: bool,
    seconds: float,
) -> Built:
    """Build the statement; `beside`: in a thread, where it is also compiled, and not cached.

    Raises TimeoutError after `seconds`; NotBegun if its turn had not come by then.
    """
    if not beside:
        return _build_both(building, explain)
    dialect = connection.dialect

    def compiled() -> Built:
        built = _build_both(building, explain)
        explained = None if built.explained is None else _compile(built.explained, dialect)
        return Built(_compile(built.statement, dialect), explained)

    working = _thread().submit(compiled)
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(working)
    except TimeoutError:
        if working.cancelled():  # by the timeout: a call that has begun cannot be cancelled
            raise NotBegun from None
        raise


def _build_both(building: Building, explain: Callable[[Executable], Executable] | None) -> Built:
    if isinstance(building, PreparedStatement):
        return Built(building, None if explain is None else explain(building.statement))
    statement = building if isinstance(building, Executable) else building()
    return Built(statement, None if explain is None else explain(statement))


class _Compiled(Executable, ClauseElement):
    """A statement that is compiled already."""

    inherit_cache = False

    def __init__(self, compiled: Any) -> None:
        self._found = compiled

    def _compile_w_cache(self, *_: Any, **__: Any) -> Any:
        return self._found


def _compile(
    statement: Executable | PreparedStatement, dialect: Any
) -> Executable | PreparedStatement:
    if isinstance(statement, PreparedStatement):
        return statement
    # The method that executing it would call: there is no public way to compile it beforehand.
    return _Compiled(
        cast(ClauseElement, statement)._compile_w_cache(
            dialect,
            compiled_cache=None,
            column_keys=[],
            for_executemany=False,
            schema_translate_map=None,
        )
    )


class RecentlyCompiled(dict[Any, Any]):
    """SQLAlchemy's cache of the last `most` compiled statements; the oldest is dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]


@cache
def get_compiled_cache() -> RecentlyCompiled:
    """Return the cache of statements with a filter.

    In the engine's own cache of at least 500 statements they took 400 MiB: each takes at least
    0.3 MiB, and few are repeated.
    """
    return RecentlyCompiled(_MOST_COMPILED)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large-statements")
