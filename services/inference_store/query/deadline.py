"""Runs statements for no longer than the remaining time of a request."""

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
from inference_store.index.prepared_statement import PreparedStatement, driver_error

from . import explain
from .explain import Building, Built, NotBegun, build_statement

_LEAST_SECONDS = 0.001
_SAVE = "SAVEPOINT bounded"
_BACK = "ROLLBACK TO SAVEPOINT bounded"
# the same if no transaction is open
_BEGIN = "BEGIN READ ONLY"
_END = "ROLLBACK"
_UNDONE_WITHIN = 20


class OutOfTime(Exception):
    """The statement was cancelled for lack of time; the transaction goes on."""


class Overloaded(OutOfTime):
    """The time is over, and this process used most of it for other requests."""


class _Work:
    """The seconds that a request's statements took."""

    def __init__(self) -> None:
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant, on the monotonic clock, at which a request's time is over.

    `soft`: the instant from which a search that can answer in part stops.
    """

    at: float
    soft: float | None = None
    began: float = field(default_factory=time.monotonic)
    work: _Work = field(default_factory=_Work)

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """Return a deadline in this many seconds."""
        now = time.monotonic()
        return cls(now + seconds, began=now)

    def softly(self, seconds: float) -> "Deadline":
        """Return the same deadline, with a soft end in this many seconds."""
        return replace(self, soft=min(self.at, time.monotonic() + seconds))

    @property
    def whole(self) -> "Deadline":
        """The same deadline without its soft end, for a search that cannot answer in part."""
        return replace(self, soft=None)

    @property
    def early(self) -> "Deadline":
        """A deadline that ends at its soft end; the same one if it has none."""
        return self if self.soft is None else replace(self, at=self.soft, soft=None)

    @property
    def left_seconds(self) -> float:
        """The remaining time in seconds; zero when it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Check whether too little time is left for any statement."""
        return self.left_seconds < _LEAST_SECONDS

    def make_error(self) -> OutOfTime:
        """Return the error for the end of the time: Overloaded if the statements had less than half
        of it."""
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
    """Return the statement's rows, within a share of the remaining time.

    Raises OutOfTime, which is Overloaded if other requests kept this process busy meanwhile.

    `large`: build and compile it beside the event loop. `what`: a description for people, if the
    query is explained. `plain`: it needs no settings, and takes one round trip if no transaction is
    open. `settings` of Postgres apply to this statement alone; `parameters` are its own. Without
    parallel workers UNION ALL returns its parts in the order in which they are written.
    """
    if plain and isinstance(building, PreparedStatement) and _is_alone(connection):
        return await _fetch_plain(connection, building, deadline, share, parameters or {})
    statement = await _build(connection, building, deadline.left_seconds * share, large)
    milliseconds = int(deadline.left_seconds * share * 1000)
    if milliseconds < _LEAST_SECONDS * 1000:
        raise deadline.make_error()
    limits = {
        **await explain.planning_settings(connection),
        "statement_timeout": str(milliseconds),
        "max_parallel_workers_per_gather": str(workers),
        **(settings or {}),
    }
    began = _measure_unoccupied()
    undo = await _limit(connection, limits)
    try:
        rows = list(await explain.fetch_watched(connection, statement, what, parameters))
    except DBAPIError as exc:
        if not exc.connection_invalidated:
            await _undo(connection, undo)
        if _is_cut_off(exc):
            deadline.work.seconds += milliseconds / 1000  # by Postgres's clock
            raise deadline.make_error() from exc
        raise
    deadline.work.seconds += _measure_unoccupied() - began
    # Nothing was written. This ends the settings, above all the remaining time.
    await _undo(connection, undo)
    return rows


def _is_alone(connection: AsyncConnection) -> bool:
    is_open = is_in_transaction(driver_now(connection))
    return is_autocommit(connection) and not is_open and not explain.is_on()


async def _fetch_plain(
    connection: AsyncConnection,
    statement: PreparedStatement,
    deadline: Deadline,
    share: float,
    parameters: Mapping[str, Any],
) -> list[Any]:
    """Return the rows of a statement that runs under the connection's own settings.

    Raises OutOfTime, by this process's clock, after cancelling the statement in Postgres, or by
    the connection's own statement_timeout, which applies as well.
    """
    seconds = deadline.left_seconds * share
    if seconds < _LEAST_SECONDS:
        raise deadline.make_error()
    began = _measure_unoccupied()
    late: Exception
    try:
        return await statement.fetch(connection, parameters, seconds=seconds)
    except TimeoutError as exc:
        late = exc
    except DBAPIError as exc:
        if not _is_cut_off(exc):
            raise
        late = exc
    finally:
        deadline.work.seconds += _measure_unoccupied() - began
    raise deadline.make_error() from late


def _measure_unoccupied() -> float:
    """Return the seconds that have passed, minus those in which this process kept a processor busy.

    While it is busy an answer of Postgres waits: that time is not the statement's.
    """
    return time.monotonic() - time.process_time()


async def _limit(connection: AsyncConnection, limits: Mapping[str, str]) -> str:
    """Begin a transaction or a savepoint with these settings, in one round trip of the driver.

    Returns the command that ends it.
    """
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
    """Roll back to before the statement. Its remaining statement_timeout may cancel this too."""
    driver = driver_now(connection)
    for _ in range(_UNDONE_WITHIN):
        try:
            await _send(driver, command)
            return
        except DBAPIError as exc:
            if not _is_cut_off(exc):
                raise
    await _send(driver, command)


async def _send(driver: Any, command: str) -> None:
    try:
        await driver.execute(command)
    except asyncio.CancelledError:
        # It is unknown whether Postgres ran it: no other request may get this connection.
        driver.terminate()
        raise
    except (PostgresError, InterfaceError, OSError) as exc:
        raise driver_error(driver, command, exc) from exc


def _is_cut_off(exc: DBAPIError) -> bool:
    return isinstance(cause_of(exc), QueryCanceledError)


async def _build(
    connection: AsyncConnection, building: Building, seconds: float, large: bool
) -> Built:
    try:
        return await build_statement(
            connection,
            building,
            explain.get_planner(),
            beside=large,
            seconds=seconds,
        )
    except NotBegun as exc:
        raise Overloaded from exc
    except TimeoutError as exc:
        raise OutOfTime from exc
