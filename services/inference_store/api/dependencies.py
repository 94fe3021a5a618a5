"""The parameters of routes: connections, on the replica or the first Postgres, and If-Match.

The transaction of a request opens and commits here; it ends before the answer is sent, so that what
was answered is committed.

Admission control bounds how many queries and streams run at once, in all and for one caller. A
query that has to wait begins as soon as another one ends: first that of the caller with the fewest
running, then the one that came first. One that has waited for long enough is refused, and told when
to come back. So the heavy queries of one caller hold up neither those of others, nor what needs a
connection for something else.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import structlog
from fastapi import Depends, Header
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import database
from inference_store.index.distribution import is_known_whole
from inference_store.inference.errors import Invalid, TooManyQueries
from inference_store.platform.metrics import (
    REPLICA_AWAY,
    TURN_SECONDS,
    TURNS,
    TURNS_REFUSED,
    TURNS_WAITING,
)
from inference_store.query.lookup import BY_ID

from .access import Access, Asking

# A caller who sends more than this before the first answer is not waiting for answers.
_MOST_WAITING_OF_ONE = 32
_MOST_WAITING = 512


# The setting that a limit follows from, where there is one.
_SETTINGS: Final = {"query": "POSTGRES_POOL_SIZE", "thumbnail": "THUMBNAIL_PROCESSES"}
Kind = Literal["query", "stream", "follow", "thumbnail"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    caller: str
    admitted: asyncio.Future[None]


class AdmissionControl:
    """Admits up to `most` at once, of which up to `most_of_one` belong to one caller."""

    def __init__(self, kind: Kind, most: int, most_of_one: int, *, wait_seconds: float = 0) -> None:
        self._kind: Final = kind
        self._most = most
        self._most_of_one = most_of_one
        self._wait_seconds = wait_seconds
        self._running: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def admit(self, caller: str, *, wait_seconds: float | None = None) -> AsyncIterator[None]:
        """Run for a caller, after a wait of at most so long. Raises TooManyQueries."""
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        began = time.monotonic()
        if self._is_free(caller):
            self._begin(caller)
        else:
            await self._wait(caller, wait)
        TURN_SECONDS.labels(self._kind).observe(time.monotonic() - began)
        try:
            yield
        finally:
            self._end(caller)

    def require_free(self, caller: str) -> None:
        """Raise TooManyQueries if the caller would have to wait; nothing is admitted."""
        if not self._is_free(caller):
            raise self._make_refusal(caller, 0)

    def _is_free(self, caller: str) -> bool:
        free = self._running.total() < self._most
        return free and self._running[caller] < self._most_of_one

    async def _wait(self, caller: str, seconds: float) -> None:
        waiting = _Waiting(caller, asyncio.get_running_loop().create_future())
        own = sum(waiting.caller == caller for waiting in self._waiting)
        if own >= _MOST_WAITING_OF_ONE or len(self._waiting) >= _MOST_WAITING:
            raise self._make_refusal(caller, seconds)
        self._waiting.append(waiting)
        TURNS_WAITING.labels(self._kind).set(len(self._waiting))
        try:
            async with asyncio.timeout(seconds):
                await waiting.admitted
        except BaseException as exc:
            if waiting.admitted.done() and not waiting.admitted.cancelled():
                self._end(caller)  # it was admitted at the very moment it left
            if isinstance(exc, TimeoutError):
                raise self._make_refusal(caller, seconds) from None
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            TURNS_WAITING.labels(self._kind).set(len(self._waiting))

    def _make_refusal(self, caller: str, seconds: float) -> TooManyQueries:
        is_own = self._running[caller] >= self._most_of_one
        TURNS_REFUSED.labels(self._kind, "caller" if is_own else "all").inc()
        setting = _SETTINGS.get(self._kind)
        note = f" (INFERENCE_STORE_{setting})" if setting else ""
        run = f"{self._most_of_one} of yours" if is_own else f"{self._most}"
        detail = f"{run} run already, which is the limit{note}. Try again shortly."
        return TooManyQueries(detail, retry_after_seconds=max(1, math.ceil(seconds)))

    def _begin(self, caller: str) -> None:
        self._running[caller] += 1
        TURNS.labels(self._kind).inc()

    def _end(self, caller: str) -> None:
        TURNS.labels(self._kind).dec()
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        while ready := [waiting for waiting in self._waiting if self._is_free(waiting.caller)]:
            first = min(ready, key=lambda waiting: self._running[waiting.caller])
            self._waiting.remove(first)
            if not first.admitted.done():
                self._begin(first.caller)
                first.admitted.set_result(None)


# For so long an unavailable replica is not used; one query of that time tries it.
_LEFT_ALONE_SECONDS = 5.0
_log = structlog.get_logger()


class Replica:
    """Connections to read on.

    While the replica is unavailable the first Postgres answers, and is counted.
    """

    def __init__(self, first: AsyncEngine, replica: AsyncEngine | None = None) -> None:
        # Statements that change nothing run each by itself: none waits for a transaction to begin
        # or to end, and nothing is locked between them.
        itself = {"isolation_level": "AUTOCOMMIT"}
        self._first = first.execution_options(**itself)
        self._replica = replica and replica.execution_options(**itself)
        self._left_alone_until = 0.0

    @property
    def is_lagging(self) -> bool:
        """Check whether a read may be older than what was answered before."""
        return self._replica is not None

    async def open(self, settings: database.Settings) -> AsyncConnection:
        """Open a connection for one query. Raises what the first Postgres raises.

        `settings`: the session settings that it has, unless the tables are, or may be, distributed.
        """
        replica = self._get_available()
        if replica is not None:
            try:
                connection = await _take_connection(replica, settings)
            except (OSError, DBAPIError) as error:
                self._left_alone_until = time.monotonic() + _LEFT_ALONE_SECONDS
                _log.warning(
                    "the read replica is unavailable", action="replica_away", error=str(error)
                )
            else:
                self._left_alone_until = 0.0
                return connection
        if self._replica is not None:
            REPLICA_AWAY.inc()
        return await _take_connection(self._first, settings)

    def _get_available(self) -> AsyncEngine | None:
        now = time.monotonic()
        if now < self._left_alone_until:
            return None
        if self._left_alone_until:  # this query tries it for the others
            self._left_alone_until = now + _LEFT_ALONE_SECONDS
        return self._replica

    async def describe_failure(self) -> str | None:
        """Return one sentence while the replica does not answer."""
        if self._replica is None:
            return None
        try:
            async with self._replica.connect() as connection:
                await connection.execute(text("SELECT 1 FROM registration LIMIT 1"))
        except (DBAPIError, PoolTimeout, OSError) as exc:
            return f"away, so that POSTGRES_DSN answers the questions: {exc}"[:500]
        return None


async def _take_connection(engine: AsyncEngine, settings: database.Settings) -> AsyncConnection:
    with database.acquire_with(settings if is_known_whole(engine.sync_engine) else database.NONE):
        return await engine.connect()


@asynccontextmanager
async def querying(
    access: Access, *, wait_seconds: float | None = None
) -> AsyncIterator[AsyncConnection]:
    """Open a connection to query on, once the caller is admitted. Raises TooManyQueries."""
    admission: AdmissionControl = access.app.admission
    # Admission first: a request that waits for it holds no connection.
    async with (
        admission.admit(access.admission_name, wait_seconds=wait_seconds),
        _read_only(access) as connection,
    ):
        yield connection


@asynccontextmanager
async def _read_only(
    access: Access, settings: database.Settings = database.NONE
) -> AsyncIterator[AsyncConnection]:
    replica: Replica = access.app.replica
    if replica.is_lagging:
        await access.settle()
    async with aclosing(await replica.open(settings)) as connection:
        yield connection
        if not replica.is_lagging:  # otherwise a connection of its own writes it
            await access.write_reads(connection)


looking_up = partial(_read_only, settings=BY_ID)
"""Open a connection to look inferences up by their ids, for no longer than that takes."""


def _depend(open: Callable[[Access], AbstractAsyncContextManager[AsyncConnection]]) -> Any:
    def opened(access: Asking) -> AbstractAsyncContextManager[AsyncConnection]:
        return open(access)

    return Depends(opened)


async def _read_tag(
    if_match: Annotated[
        str | None,
        Header(
            description='The ETag that it must have, such as `"3"`; `"0"` if it must be new.',
            examples=['"3"'],
        ),
    ] = None,
) -> str | None:
    return None if if_match is None or if_match.strip() == "*" else if_match.strip().strip('"')


IfMatchTag: TypeAlias = Annotated[str | None, Depends(_read_tag)]


async def _read_if_match(number: IfMatchTag) -> int | None:
    if number is None:
        return None
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise Invalid.of("header.if-match", 'it must be a revision, such as "3"')
    return int(number)


Reading: TypeAlias = Annotated[AsyncConnection, _depend(_read_only)]
LookingUp: TypeAlias = Annotated[AsyncConnection, _depend(looking_up)]
"""For one inference by its id: its statements are planned once."""
Querying: TypeAlias = Annotated[AsyncConnection, _depend(querying)]
"""For what may run long: no more are open than may run at once."""
Writing: TypeAlias = Annotated[AsyncConnection, _depend(lambda access: access.engine.begin())]
IfMatch: TypeAlias = Annotated[int | None, Depends(_read_if_match)]
