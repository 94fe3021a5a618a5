"""Runs statements for no longer than the remaining time of a request."""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from asyncpg.exceptions import InterfaceError, PostgresError, QueryCanceledError
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    SelectBase,
    and_,
    any_,
    bindparam,
    column,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.index.database import cause_of, driver_now, is_autocommit, is_in_transaction
from inference_store.index.distribution import is_distributed_cached
from inference_store.index.partitions import list_partitions
from inference_store.index.prepared_statement import PreparedStatement, driver_error
from inference_store.index.tables import erasing
from inference_store.inference.events.event import uid_floor
from inference_store.query import explain
from inference_store.query.explain import Building, Built

_LEAST_SECONDS = 0.001
_SAVE = "SAVEPOINT bounded"
# released too: each one that is left makes the transaction heavier
_BACK = "ROLLBACK TO SAVEPOINT bounded; RELEASE SAVEPOINT bounded"
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

    def soon(self, seconds: float) -> "Deadline":
        """Return a deadline in this many seconds, or the same one if it is earlier."""
        return replace(self, at=min(self.at, time.monotonic() + seconds), soft=None)

    def part(self, share: float) -> "Deadline":
        """Return a deadline at the end of a share of the remaining time."""
        return replace(self, at=time.monotonic() + self.left_seconds * share, soft=None)

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
    what: str = "",
    plain: bool = False,
    workers: int = 0,
    settings: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the statement's rows, within the remaining time.

    Raises OutOfTime, which is Overloaded if other requests kept this process busy meanwhile.

    `large`: build and compile it beside the event loop. `what`: a description for people, if the
    query is explained. `plain`: it needs no settings, and takes one round trip if no transaction is
    open. `settings` of Postgres apply to this statement alone; `parameters` are its own. Without
    parallel workers UNION ALL returns its parts in the order in which they are written.
    """
    if plain and isinstance(building, PreparedStatement) and _is_alone(connection):
        return await _fetch_plain(connection, building, deadline, parameters or {})
    statement = await build_statement(connection, building, deadline.left_seconds, large=large)
    milliseconds = int(deadline.left_seconds * 1000)
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
    parameters: Mapping[str, Any],
) -> list[Any]:
    """Return the rows of a statement that runs under the connection's own settings.

    Raises OutOfTime, by this process's clock, after cancelling the statement in Postgres, or by
    the connection's own statement_timeout, which applies as well.
    """
    if deadline.is_over:
        raise deadline.make_error()
    began = _measure_unoccupied()
    late: Exception
    try:
        return await statement.fetch(connection, parameters, seconds=deadline.left_seconds)
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


async def build_statement(
    connection: AsyncConnection, building: Building, seconds: float, *, large: bool
) -> Built:
    """Build the statement; `large`: beside the event loop, where it is also compiled.

    Raises OutOfTime after `seconds`; Overloaded if its turn had not come by then.
    """
    planner = explain.get_planner()
    if not large:
        return explain.build(building, planner)
    working = _thread().submit(explain.build, building, planner, connection.dialect)
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(working)
    except TimeoutError as exc:
        # cancelled by the timeout: a call that has begun cannot be
        raise (Overloaded if working.cancelled() else OutOfTime) from exc


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large-statements")


# Scan ranges: models, and a half-open range of uids, which is a span of time.


def bind_one(value: Any, kind: TypeEngine[Any]) -> Any:
    """Return one value as a parameter."""
    return bindparam(None, value, type_=kind, unique=True)


def bind_many(values: Any, kind: TypeEngine[Any]) -> Any:
    """Return a list as one parameter: the protocol allows 32,767 of them."""
    return bindparam(None, list(values), type_=ARRAY(kind), unique=True)


# Planning costs grow with partitions, and 200 at once exhaust the lock table.
GROUP = 8
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
Range: TypeAlias = tuple[UUID, UUID]
"""Uids, half-open."""


_EACH: Final = "each_model"
# By their names: no SELECT inside of `read_each` takes them for columns of a table of its own.
_EACH_MODEL: Final[ColumnElement[int]] = literal_column(f"{_EACH}.model", Integer())
EACH_UID: Final[ColumnElement[UUID]] = literal_column(f"{_EACH}.uid", UUID_TYPE(as_uuid=True))
"""The uid whose turn it is in `read_each`."""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A model's uids in [lo, hi); or those of several models, for `read_each`."""

    model: int
    lo: UUID
    hi: UUID
    others: tuple[int, ...] | None = None
    """More models; empty: several were asked, and this one is left of them."""
    one_by_one: bool = field(default=False, compare=False)
    """Whether what is tested in it is looked up for each inference by itself, whatever Postgres
    expects: it would hash, or join, all that the tests of a few could find."""
    # bound once, however many tables it is set on: a statement has 32,767 parameters at most
    _bound: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def is_of_several(self) -> bool:
        """Check whether it is for `read_each`."""
        return self.others is not None

    @property
    def models(self) -> tuple[int, ...]:
        """All of its models."""
        return (self.model, *(self.others or ()))

    def of(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition on a table's rows. Every table gets it, so that the planner prunes
        partitions."""
        if not self._bound:
            uid = UUID_TYPE(as_uuid=True)
            model = _EACH_MODEL if self.is_of_several else bind_one(self.model, INTEGER())
            self._bound.extend((model, bind_one(self.lo, uid), bind_one(self.hi, uid)))
        model, lo, hi = self._bound
        return and_(table.c.model == model, table.c.uid >= lo, table.c.uid < hi)

    def clip(self, lo: UUID, hi: UUID) -> "ScanRange":
        """Return the part of it in [lo, hi)."""
        return replace(self, lo=max(self.lo, lo), hi=min(self.hi, hi))

    @property
    def empty(self) -> bool:
        """Check whether it can contain no uid."""
        return self.lo >= self.hi

    def split(self) -> "list[ScanRange]":
        """Return the range of each model by itself."""
        return [ScanRange(model, self.lo, self.hi) for model in self.models]


def read_each(
    scan_range: ScanRange, rows: SelectBase, uids: Sequence[tuple[Any, ...]] | None = None
) -> Any:
    """Select the rows of a range; if it is of several models, those of one after the other, each
    behind its model. `uids`: of these models and uids, `rows` are about `EACH_UID`.

    A statement of many models is built and planned once, however many they are.
    """
    if not scan_range.is_of_several:
        return rows
    lists = {"model": bind_many(scan_range.models, INTEGER())}
    if uids is not None:
        models, ids = ([one[place] for one in uids] for place in (0, 1))
        lists = {"model": bind_many(models, INTEGER()), "uid": bind_many(ids, UUID_TYPE())}
    unnested = func.unnest(*lists.values()).table_valued(*map(column, lists))
    each, some = unnested.render_derived(name=_EACH), rows.lateral()
    return select(each.c.model, *some.c).join_from(each, some, true())


async def reads_apart(connection: AsyncConnection, scan_range: ScanRange) -> bool:
    """Check whether each of several models needs a statement of its own: Citus has no `read_each`,
    whose models are on many nodes."""
    return scan_range.is_of_several and await is_distributed_cached(connection)


def range_of_time(model: int, since: datetime | None, until: datetime | None) -> ScanRange:
    """Return the range of [since, until)."""
    lo = LOWEST if since is None else uid_floor(since)
    return ScanRange(model, lo, HIGHEST if until is None else uid_floor(until))


async def find_pieces_of(
    connection: AsyncConnection, scan_range: ScanRange, *, newest_first: bool, closed: bool = False
) -> list[ScanRange]:
    """Cut the range into the partitions' spans, in the order in which they are searched.

    `closed`: also the spans that are being dropped.
    """
    return cut_range(
        scan_range, await find_ranges(connection, closed=closed), newest_first=newest_first
    )


async def find_ranges(connection: AsyncConnection, *, closed: bool = False) -> list[Range]:
    """Return the spans as ranges of uids, the newest first."""
    partitions = await list_partitions(connection, closed=closed)
    return [(uid_floor(span.lo), uid_floor(span.hi)) for span in partitions]


def cut_range(
    scan_range: ScanRange, ranges: Sequence[Range], *, newest_first: bool
) -> list[ScanRange]:
    """Cut the range by these ranges, which are given newest first."""
    pieces = [piece for bounds in ranges if not (piece := scan_range.clip(*bounds)).empty]
    return pieces if newest_first else pieces[::-1]


def split_groups(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield the pieces in groups of `size`."""
    for start in range(0, len(pieces), size):
        yield pieces[start : start + size]


def take_unbroken(pieces: Sequence[ScanRange], size: int = GROUP) -> Sequence[ScanRange]:
    """Return the first pieces that adjoin and are of the same models, at most `size`.

    In a hole there may be a partition that is being dropped, whose rows nobody may see.
    """
    for index in range(1, min(size, len(pieces))):
        before, after = pieces[index - 1], pieces[index]
        is_hole = before.lo != after.hi and before.hi != after.lo
        if is_hole or before.models != after.models:
            return pieces[:index]
    return pieces[:size]


def split_unbroken(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield groups of at most `size` adjoining pieces: `span_around` a group has no hole."""
    while pieces:
        group = take_unbroken(pieces, size)
        yield group
        pieces = pieces[len(group) :]


def split_growing(pieces: Sequence[ScanRange], size: int = GROUP) -> Iterator[Sequence[ScanRange]]:
    """Yield one piece, then two, then more, up to `size`: the first ones usually suffice."""
    start, some = 0, 1
    while start < len(pieces):
        yield pieces[start : start + some]
        start, some = start + some, min(2 * some, size)


def span_around(pieces: Sequence[ScanRange]) -> ScanRange:
    """Return the range from the earliest to the latest of several pieces, with the holes between
    them."""
    return replace(pieces[0], lo=min(s.lo for s in pieces), hi=max(s.hi for s in pieces))


def leave_out(pieces: Sequence[ScanRange], known: Collection[ScanRange]) -> list[ScanRange]:
    """Return the pieces of each model that are not known."""
    rest: list[ScanRange] = []
    for piece in pieces:
        models = [one.model for one in piece.split() if one not in known]
        if models and piece.is_of_several:
            rest.append(replace(piece, model=models[0], others=tuple(models[1:])))
        elif models:
            rest.append(piece)
    return rest


async def has_marks(connection: AsyncConnection, models: Sequence[int]) -> bool:
    """Check whether any inference of the models is being erased; if not, no query tests for it."""
    return bool(await _select_first_mark().fetch(connection, {"of": models}))


@cache
def _select_first_mark() -> PreparedStatement:
    here = erasing.c
    mine = here.model == any_(bindparam("of", type_=ARRAY(INTEGER())))
    return PreparedStatement(select(here.uid).where(mine, here.scope == "inference").limit(1))


def test_unmarked(scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
    """Test that the inference is not being erased."""
    mark = select(erasing.c.uid).where(
        scan_range.of(erasing), erasing.c.uid == uid, erasing.c.scope == "inference"
    )
    return ~mark.exists()
