"""Statements, built and compiled: large ones beside the loop that answers everybody.

A filter of hundreds of comparisons takes the better part of a second to become SQL. One thread
makes all such statements, one after the other: what is left of the processor is for the others.
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

from inference_store.index.prepared import Prepared

Building: TypeAlias = Executable | Prepared | Callable[[], Executable]
"""A statement, or what builds it."""


_MOST_COMPILED = 32


class NotBegun(TimeoutError):
    """The statement waited for others that were being built until its time was over."""


@dataclass(frozen=True, slots=True)
class Built:
    """What is executed. `explained`: the same in its other form, where that is asked for."""

    statement: Executable | Prepared
    explained: Executable | Prepared | None


async def built(
    connection: AsyncConnection,
    building: Building,
    explain: Callable[[Executable], Executable] | None = None,
    *,
    beside: bool,
    seconds: float,
) -> Built:
    """The statement; built `beside` the loop it is compiled as well, and kept in no cache.

    Raises TimeoutError after so many seconds; NotBegun if it was not its turn by then.
    """
    if not beside:
        return _whole(building, explain)
    dialect = connection.dialect

    def compiled() -> Built:
        made = _whole(building, explain)
        explained = None if made.explained is None else _compiled(made.explained, dialect)
        return Built(_compiled(made.statement, dialect), explained)

    working = _thread().submit(compiled)
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(working)
    except TimeoutError:
        if working.cancelled():  # by the timeout; what has begun cannot be
            raise NotBegun from None
        raise


def _whole(building: Building, explain: Callable[[Executable], Executable] | None) -> Built:
    if isinstance(building, Prepared):
        return Built(building, None if explain is None else explain(building.statement))
    statement = building if isinstance(building, Executable) else building()
    return Built(statement, None if explain is None else explain(statement))


class _Compiled(Executable, ClauseElement):
    """A statement that executes as what it was compiled to."""

    inherit_cache = False

    def __init__(self, found: Any) -> None:
        self._found = found

    def _compile_w_cache(self, *_: Any, **__: Any) -> Any:
        return self._found


def _compiled(statement: Executable | Prepared, dialect: Any) -> Executable | Prepared:
    if isinstance(statement, Prepared):
        return statement
    # What executing it would call, and the one way to have it done before.
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
    """SQLAlchemy's cache of the last `most` statements compiled; the oldest makes way."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]


@cache
def recently_compiled() -> RecentlyCompiled:
    """Of statements that hold a filter. In the engine's own cache, of 500 statements and more, they
    took 400 MiB: each is 0.3 MiB and more, and few are asked twice."""
    return RecentlyCompiled(_MOST_COMPILED)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large-statements")
