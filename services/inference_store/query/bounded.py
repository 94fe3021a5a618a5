"""Statements that may not run longer than what is left of a request's time."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from asyncpg.exceptions import InterfaceError, PostgresError, QueryCanceledError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import cause_of, driver_now, is_autocommit, is_in_transaction
from inference_store.index.prepared import Prepared, driver_error

from . import explain
from .building import Building, Built, NotBegun, built

_LEAST_SECONDS = 0.001
_SAVE = "SAVEPOINT bounded"
_BACK = "ROLLBACK TO SAVEPOINT bounded"
# the same where no transaction is open
_BEGIN = "BEGIN READ ONLY"
_END = "ROLLBACK"
_UNDONE_WITHIN = 20


class OutOfTime(Exception):
    """The statement was cut off; the transaction goes on."""


class Overloaded(OutOfTime):
    """The time is over, and the request had little of it: this process was busy with others."""


class _Work:
    """Seconds that a request's statements took."""

    def __init__(self) -> None:
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant, on the monotonic clock, at which a request's time is over.

    `soft`: the instant from which whoever could answer in part looks no further.
    """

    at: float
    soft: float | None = None
    began: float = field(default_factory=time.monotonic)
    work: _Work = field(default_factory=_Work)

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    def softly(self, seconds: float) -> "Deadline":
        """The same one, with a soft end so many seconds from now."""
        return replace(self, soft=min(self.at, time.monotonic() + seconds))

    @property
    def whole(self) -> "Deadline":
        """The same one without its soft end, for what cannot be answered in part."""
        return replace(self, soft=None)

    @property
    def early(self) -> "Deadline":
        """Its soft end as the only one; itself where it has none."""
        return self if self.soft is None else replace(self, at=self.soft, soft=None)

    @property
    def left_seconds(self) -> float:
        """Time that is left; zero when it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether too little is left for any statement."""
        return self.left_seconds < _LEAST_SECONDS

    def exceeded(self) -> OutOfTime:
        """What to raise when it is over: Overloaded if the statements had less than half of it."""
        passed = time.monotonic() - self.began
        return OutOfTime() if 2 * self.work.seconds >= passed else Overloaded()


async def fetch(
    connection: AsyncConnection,
    building: Building,
    deadline: Deadline,
    *,
    large: bool = False,
    share: float = 1.0,
    what: str = "",
    plain: bool = False,
    workers: int = 0,
    settings: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The statement's rows, within a share of the time that is left. Raises OutOfTime, which is
    Overloaded if the time went by while other requests kept this process busy.

    `large`: it is built and compiled beside the loop. `what` it does, for people, where the
    query is being explained.
    `plain`: it needs no settings, and takes one round trip where no transaction is open.
    `settings` of Postgres hold for this statement alone; `parameters` are its own.
    Without parallel workers UNION ALL gives its parts in the order they are written.
    """
    if plain and isinstance(building, Prepared) and _is_alone(connection):
        return await _fetch_plain(connection, building, deadline, share, parameters or {})
    statement = await _built(connection, building, deadline.left_seconds * share, large)
    milliseconds = int(deadline.left_seconds * share * 1000)
    if milliseconds < _LEAST_SECONDS * 1000:
        raise deadline.exceeded()
    limits = {
        **await explain.planning_settings(connection),
        "statement_timeout": str(milliseconds),
        "max_parallel_workers_per_gather": str(workers),
        **(settings or {}),
    }
    began = _unoccupied()
    undo = await _limit(connection, limits)
    try:
        rows = list(await explain.watched(connection, statement, what, parameters))
    except DBAPIError as exc:
        if not exc.connection_invalidated:
            await _undo(connection, undo)
        if _cut_off(exc):
            deadline.work.seconds += milliseconds / 1000  # by Postgres's clock
            raise deadline.exceeded() from exc
        raise
    deadline.work.seconds += _unoccupied() - began
    # Nothing was written. What was set, the time left above all, binds nothing after it.
    await _undo(connection, undo)
    return rows


def _is_alone(connection: AsyncConnection) -> bool:
    """Whether a statement is a transaction by itself, and nobody asks for its plan."""
    is_open = is_in_transaction(driver_now(connection))
    return is_autocommit(connection) and not is_open and not explain.is_on()


async def _fetch_plain(
    connection: AsyncConnection,
    statement: Prepared,
    deadline: Deadline,
    share: float,
    parameters: Mapping[str, Any],
) -> list[Any]:
    """The rows of a statement that runs under the settings which the connection has. Raises
    OutOfTime when this process says so, and has Postgres cancel it; or by the connection's own
    statement_timeout, which holds as well."""
    seconds = deadline.left_seconds * share
    if seconds < _LEAST_SECONDS:
        raise deadline.exceeded()
    began = _unoccupied()
    late: Exception
    try:
        return await statement.fetch(connection, parameters, seconds=seconds)
    except TimeoutError as exc:
        late = exc
    except DBAPIError as exc:
        if not _cut_off(exc):
            raise
        late = exc
    finally:
        deadline.work.seconds += _unoccupied() - began
    raise deadline.exceeded() from late


def _unoccupied() -> float:
    """Seconds that have gone by less those for which this process kept a processor busy. While it
    does so an answer of Postgres waits: that time is not the statement's."""
    return time.monotonic() - time.process_time()


async def _limit(connection: AsyncConnection, limits: Mapping[str, str]) -> str:
    """Begin a transaction, or a savepoint in one, in which Postgres has these settings: one round
    trip, by the driver. What ends it."""
    driver = driver_now(connection)
    if is_in_transaction(driver):
        first, undo = [_SAVE], _BACK
    elif is_autocommit(connection):
        first, undo = [_BEGIN], _END
    else:  # SQLAlchemy begins one with the first statement that it sends
        await connection.execute(text(_SAVE))
        first, undo = [], _BACK
    await _send(driver, "; ".join(first + [f"SET LOCAL {n} = '{v}'" for n, v in limits.items()]))
    return undo


async def _undo(connection: AsyncConnection, command: str) -> None:
    """Back to before the statement. The little time it had left may end this one too."""
    driver = driver_now(connection)
    for _ in range(_UNDONE_WITHIN):
        try:
            await _send(driver, command)
            return
        except DBAPIError as exc:
            if not _cut_off(exc):
                raise
    await _send(driver, command)


async def _send(driver: Any, command: str) -> None:
    """Raises DBAPIError, as a statement of SQLAlchemy's does."""
    try:
        await driver.execute(command)
    except asyncio.CancelledError:
        # Whether Postgres has done it is not known: no other request may get this connection.
        driver.terminate()
        raise
    except (PostgresError, InterfaceError, OSError) as exc:
        raise driver_error(driver, command, exc) from exc


def _cut_off(exc: DBAPIError) -> bool:
    return isinstance(cause_of(exc), QueryCanceledError)


async def _built(
    connection: AsyncConnection, building: Building, seconds: float, large: bool
) -> Built:
    try:
        return await built(
            connection,
            building,
            explain.planned(),
            beside=large,
            seconds=seconds,
        )
    except NotBegun as exc:
        raise Overloaded from exc
    except TimeoutError as exc:
        raise OutOfTime from exc
