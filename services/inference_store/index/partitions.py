"""Time partitions: their catalogue, locks, creation, removal, merging and vacuum."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Final

from asyncpg.exceptions import (
    DeadlockDetectedError,
    LockNotAvailableError,
    UndefinedTableError,
)
from sqlalchemy import and_, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of, is_transient
from inference_store.index.distribution import is_distributed
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import PARTITIONED, inference, partition_span
from inference_store.inference.events import uid_floor
from inference_store.platform.failpoints import failpoint


@dataclass(frozen=True, slots=True, order=True)
class TimePartition:
    """A half-open range of time, [lo, hi), that is one partition of every table."""

    lo: datetime
    hi: datetime
    name: str

    @classmethod
    def between(cls, lo: datetime, hi: datetime) -> "TimePartition":
        """Return the partition [lo, hi) with its name; the bounds are whole hours."""
        return cls(lo, hi, f"p{lo:%Y%m%dT%H}_{hi:%Y%m%dT%H}".lower())

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its partitions, children first and the parent's last."""
        return tuple(f"{table.name}_{self.name}" for table in reversed(PARTITIONED))


class TimePartitions:
    """The known part of the catalogue, in which a writer finds the partition of an event."""

    def __init__(self, partitions: Iterable[TimePartition] = ()) -> None:
        self._partitions = sorted(partitions)
        self._starts = [partition.lo for partition in self._partitions]

    def find(self, at: datetime) -> TimePartition | None:
        """Return the partition that contains an instant, or None."""
        index = bisect_right(self._starts, at) - 1
        if index >= 0 and at < self._partitions[index].hi:
            return self._partitions[index]
        return None

    def find_end(self, at: datetime) -> datetime:
        """Return until when there are partitions from an instant on, without a gap."""
        while (partition := self.find(at)) is not None:
            at = partition.hi
        return at

    def missing(self, instants: Iterable[datetime]) -> list[datetime]:
        """Return the instants that are in no partition."""
        return [at for at in instants if self.find(at) is None]

    def gap(self, at: datetime) -> tuple[datetime | None, datetime | None]:
        """Return the end of the partition before `at` and the start of the one after it."""
        index = bisect_right(self._starts, at)
        before = self._partitions[index - 1].hi if index else None
        after = self._partitions[index].lo if index < len(self._partitions) else None
        return before, after


async def list_partitions(
    connection: AsyncConnection,
    *,
    lo: datetime | None = None,
    hi: datetime | None = None,
    closed: bool = False,
) -> list[TimePartition]:
    """Return the partitions that touch [lo, hi), newest first; `closed`: also closed ones."""
    rows = await _touching(closed).fetch(connection, {"since": lo, "until": hi})
    return [TimePartition(row["lo"], row["hi"], row["name"]) for row in rows]


@cache
def _touching(closed: bool) -> PreparedStatement:
    here = partition_span.c
    since, until = (bindparam(name, type_=here.lo.type) for name in ("since", "until"))
    query = select(here.lo, here.hi, here.name).where(
        since.is_(None) | (here.hi > since), until.is_(None) | (here.lo < until)
    )
    query = query if closed else query.where(here.state == "open")
    return PreparedStatement(query.order_by(here.lo.desc()))


# The locks of partitions, and the one order in which everybody takes them.
#
# 1. The offsets of a consumer (`accounting.lock_at`).
# 2. Registrations (`registrations.keep`), then the names of keys and labels.
# 3. The catalogue of partitions, of whoever creates, merges or drops one (`lock_catalogue`): to end
#    an interrupted detachment, Postgres locks the parent and waits for all older transactions, one
#    of which may be about to attach a partition to that parent.
# 4. The rows of the catalogue: `share` of whoever writes inferences, `claim` of whoever merges.
# 5. The fence, the tables and their rows.
#
# Who writes inferences waits for none of 1 to 4 once it has a table. (What erases, closes, merges
# and drops is one leader, and does one thing after another.) In 5 the order is that of each query,
# so who takes tables away waits for one of them only while it has none (`seize`).

_LOCK = 7_302_002
_MOST_TRIES = 10


async def lock_catalogue(connection: AsyncConnection, *, session: bool = False) -> None:
    """Let nobody else create, merge or drop a partition until this transaction ends; `session`:
    until `unlock_catalogue`."""
    lock = func.pg_advisory_lock if session else func.pg_advisory_xact_lock
    await connection.execute(select(lock(_LOCK)))


async def unlock_catalogue(connection: AsyncConnection) -> None:
    """End what a session has of the catalogue's lock, if it has it."""
    await connection.execute(select(func.pg_advisory_unlock(_LOCK)))


async def share(connection: AsyncConnection, instants: Collection[datetime]) -> None:
    """Let nobody merge the partitions from the first to the last of these instants until the
    transaction ends; wait for a merge that has begun."""
    if not instants:
        return
    values = {"first": min(instants), "last": max(instants)}
    # what a merge has replaced while we waited is not the partition that we would write to
    while await _between(True).fetch(connection, values) != await _between(False).fetch(
        connection, values
    ):
        pass


@cache
def _between(lock: bool) -> PreparedStatement:
    here = partition_span.c
    first, last = (bindparam(name, type_=here.lo.type) for name in ("first", "last"))
    query = select(here.name).where(here.hi > first, here.lo <= last).order_by(here.lo)
    return PreparedStatement(query.with_for_update(read=True, key_share=True) if lock else query)


async def claim(connection: AsyncConnection, names: Collection[str]) -> bool:
    """Let nobody write to open partitions until the transaction ends; False: one is not open."""
    here = partition_span.c
    query = select(here.name).where(here.name.in_(names), here.state == "open").order_by(here.lo)
    return len((await connection.execute(query.with_for_update())).all()) == len(names)


async def seize(connection: AsyncConnection, tables: Sequence[str]) -> None:
    """Lock tables against everybody until the transaction ends.

    Raises errors of the database: after waiting longer than `lock_timeout` for one of them, or if
    again and again another one is in use.
    """
    first = tables[0]
    for tries in range(_MOST_TRIES):
        table = first
        try:
            async with connection.begin_nested():
                for table in (first, *(name for name in tables if name != first)):
                    wait = "" if table == first else " NOWAIT"
                    lock = f"LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE{wait}"
                    await connection.execute(text(lock))
            return
        except DBAPIError as error:
            busy = isinstance(cause_of(error), LockNotAvailableError) and table != first
            if not busy or tries == _MOST_TRIES - 1:
                raise
            first = table


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# Widths nest into each other when aligned to _EPOCH.
_WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 24, 24 * 7, 24 * 28))
_DEFAULT_WIDTH = timedelta(days=1)
_OLD = timedelta(days=60)
# The next partition exists this long before its first event.
AHEAD = timedelta(hours=1)
# The inferences that one partition should hold.
TARGET = 2_000_000


async def make_missing(
    engine: AsyncEngine, instants: Sequence[datetime], *, target: int, now: datetime | None = None
) -> TimePartitions:
    """Return the catalogue with a partition for each of `instants`; create missing ones, one at a
    time. `now`: from which time on they are old."""
    async with engine.connect() as connection:
        partitions = TimePartitions(await list_partitions(connection, closed=True))
    for at in sorted(set(instants)):
        if partitions.find(at) is None:
            failpoint("partitions.create.before")
            async with engine.begin() as connection:
                await lock_catalogue(connection)
                partitions = TimePartitions(await list_partitions(connection, closed=True))
                if partitions.find(at) is None:
                    await _make(connection, partitions, at, target, now or datetime.now(UTC))
                    partitions = TimePartitions(await list_partitions(connection, closed=True))
            failpoint("partitions.create.after")
    return partitions


async def make_ahead(
    engine: AsyncEngine, *, target: int = TARGET, at: datetime | None = None
) -> bool:
    """Create partitions until they reach further than AHEAD from now, or `at`; return whether any.

    If no partition is in use, none is created. One may not be enough: a partition may end at a
    border of its width, minutes after it begins.
    """
    now, has_created = at or datetime.now(UTC), False
    while True:
        async with engine.connect() as connection:
            partitions = TimePartitions(await list_partitions(connection, closed=True))
        end = partitions.find_end(now)
        if end == now or end - now > AHEAD:
            return has_created
        await make_missing(engine, [end], target=target)
        has_created = True


async def _make(
    connection: AsyncConnection,
    partitions: TimePartitions,
    at: datetime,
    target: int,
    now: datetime,
) -> None:
    width = await _width(connection, at, target, now)
    lo = _EPOCH + (at - _EPOCH) // width * width
    hi = lo + width
    before, after = partitions.gap(at)
    lo = max(lo, before) if before is not None else lo
    hi = min(hi, after) if after is not None else hi
    await create(connection, TimePartition.between(lo, hi))


async def create(connection: AsyncConnection, partition: TimePartition) -> None:
    """Create a partition of every table, and the catalogue's row. The caller has the lock.

    The tables are created separately and attached: `CREATE TABLE … PARTITION OF` would lock the
    parents against their readers, and deadlock with them. Raises errors of the database after
    waiting 5 s for a lock.
    """
    await connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    for table in PARTITIONED:
        parent, name = table.name, f"{table.name}_{partition.name}"
        for statement in (
            f"CREATE TABLE {name} ({like(parent)}) {settings()}",
            f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES {bounds_of(partition)}",
        ):
            await connection.execute(text(statement))
    values = {"name": partition.name, "lo": partition.lo, "hi": partition.hi}
    await connection.execute(partition_span.insert().values(values))


async def _width(
    connection: AsyncConnection, at: datetime, target: int, now: datetime
) -> timedelta:
    near = (
        select(partition_span.c.lo, partition_span.c.hi, partition_span.c.analysed_rows)
        .where(partition_span.c.hi <= at, partition_span.c.analysed_rows > 0)
        .order_by(partition_span.c.lo.desc())
        .limit(1)
    )
    row = (await connection.execute(near)).first()
    if row is None:
        return _WIDTHS[-1] if now - at > _OLD else _DEFAULT_WIDTH
    lo, hi, rows = row
    ideal = (min(hi, now) - lo) * (target / rows)
    return max((width for width in _WIDTHS if width <= ideal), default=_WIDTHS[0])


def like(parent: str) -> str:
    """Return the DDL for a table's columns and the other parts that a partition must share."""
    shared = ("DEFAULTS", "CONSTRAINTS", "INDEXES", "STORAGE", "COMPRESSION")
    return " ".join([f"LIKE {parent}", *(f"INCLUDING {what}" for what in shared)])


# Counts read only indexes if vacuum has visited the rows. It runs after each added twentieth, not
# fifth, and reads the new rows, but no index; and after each erased twentieth, so that its work is
# spread over a long erasure, and few dead rows are ever read.
SETTINGS: Final = {
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_vacuum_insert_threshold": "10000",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_threshold": "10000",
}


def settings() -> str:
    """Return the settings of a partition: a table's settings are not its partitions'."""
    return f"WITH ({', '.join(f'{name} = {value}' for name, value in SETTINGS.items())})"


def bounds_of(partition: TimePartition) -> str:
    """Return a partition's bounds for DDL."""
    return f"FROM ('{uid_floor(partition.lo)}') TO ('{uid_floor(partition.hi)}')"


async def drop(engine: AsyncEngine, partition: TimePartition, *, lock_timeout: str = "2s") -> None:
    """Drop the tables of a partition; repeatable, because a crash may follow any step.

    Order: detach (concurrently, so that readers go on; Citus cannot do so, and they wait), drop,
    then the catalogue's row. A reader that still has that row reads the parent without the
    partition, as it should.
    """
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        await connection.execute(text(f"SET lock_timeout = '{lock_timeout}'"))
        try:
            await lock_catalogue(connection, session=True)
            how = "" if await is_distributed(connection) else "CONCURRENTLY"
            for table in partition.tables:
                await _drop_one(connection, table, how)
            await connection.execute(
                partition_span.delete().where(partition_span.c.name == partition.name)
            )
        finally:
            await unlock_catalogue(connection)
            await connection.execute(text("RESET lock_timeout"))


async def _drop_one(connection: AsyncConnection, table: str, how: str) -> None:
    parent = table.rsplit("_p", 1)[0]
    state = await connection.execute(
        text(
            "SELECT inhdetachpending FROM pg_inherits"
            " WHERE inhrelid = to_regclass(:name) AND inhparent = to_regclass(:parent)"
        ),
        {"name": table, "parent": parent},
    )
    attached = state.first()
    if attached is not None:
        how = "FINALIZE" if attached[0] else how
        await connection.execute(text(f"ALTER TABLE {parent} DETACH PARTITION {table} {how}"))
    await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))


# The partition was dropped or merged meanwhile, or is locked: it is tried another day.
_OF_TABLE = text("SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = :name")
_OF_SHARDS = text(
    "SELECT sum(result::bigint) FROM run_command_on_shards(:name,"
    " $$SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = '%s'::regclass$$) WHERE success"
)
BUSY = (UndefinedTableError, LockNotAvailableError, DeadlockDetectedError)


async def analyse(engine: AsyncEngine) -> int:
    """Gather statistics of open partitions whose rows have doubled; return their number.

    A partition without statistics is planned for one row: 60,000 rows then cost 42 ms, not 0.1.
    """
    async with engine.connect() as connection:
        partitions = await list_partitions(connection)
    done = 0
    for partition in partitions:
        try:
            done += await _analyse(engine, partition)
        except DBAPIError as error:
            if not isinstance(cause_of(error), BUSY):
                raise
    return done


async def _analyse(engine: AsyncEngine, partition: TimePartition) -> bool:
    here = and_(partition_span.c.name == partition.name, partition_span.c.state == "open")
    async with engine.begin() as connection:
        # One process at a time: a second one has nothing to do.
        locked = select(partition_span.c.analysed_rows).where(here)
        analysed_rows = await connection.scalar(
            locked.with_for_update(skip_locked=True, key_share=True)
        )
        rows = await _rows(connection, partition)
        if analysed_rows is None or rows < max(2 * analysed_rows, 1000):
            return False
        await connection.execute(text("SET LOCAL lock_timeout = '2s'"))
        for table in partition.tables:
            await connection.execute(text(f"ANALYZE {table}"))
        await connection.execute(partition_span.update().where(here).values(analysed_rows=rows))
    return True


async def _rows(connection: AsyncConnection, partition: TimePartition) -> int:
    query = _OF_SHARDS if await is_distributed(connection) else _OF_TABLE
    rows = await connection.scalar(query, {"name": f"{inference.name}_{partition.name}"})
    return int(rows or 0)


# Many small old partitions are merged into few: planning costs 0.1 ms for each that a query visits.
#
# Order: claim both in the catalogue, copy into new tables that nobody sees, then take the old ones
# away, attach and move the catalogue, all in one transaction. Writers to the two partitions wait
# for it (their late events are rare), readers only for its last step. If we wait longer than
# `lock_timeout` for a lock, the merge is given up and tried again another day.

_MOST_DAYS = timedelta(days=366)


async def merge(
    engine: AsyncEngine, *, target: int = TARGET, older_than: timedelta, lock_timeout: str = "2s"
) -> int:
    """Merge neighbours that together hold less than half of `target`; return the number of merges.

    Only partitions that ended before `older_than` ago, and never across a gap in the catalogue.
    """
    merged = 0
    while pair := await _pair(engine, target, datetime.now(UTC) - older_than):
        try:
            async with engine.begin() as connection:
                await connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
                await lock_catalogue(connection)
                if not await claim(connection, [part.name for part in pair]):
                    break
                await _merge(connection, *pair)
        except Exception as error:  # only transient errors are handled
            if not is_transient(error):
                raise
            break
        merged += 1
    return merged


async def _pair(
    engine: AsyncEngine, target: int, before: datetime
) -> tuple[TimePartition, TimePartition] | None:
    catalogue = partition_span.c
    query = select(partition_span).where(catalogue.hi < before, catalogue.state == "open")
    async with engine.connect() as connection:
        if await is_distributed(connection):
            return None  # rows would go through the coordinator and back
        rows = (await connection.execute(query.order_by(catalogue.lo))).all()
    for older, newer in pairwise(rows):
        small = older.analysed_rows + newer.analysed_rows < target // 2
        if small and older.hi == newer.lo and newer.hi - older.lo <= _MOST_DAYS:
            return _partition(older), _partition(newer)
    return None


def _partition(row: object) -> TimePartition:
    return TimePartition(row.lo, row.hi, row.name)  # type: ignore[attr-defined]


async def _merge(connection: AsyncConnection, older: TimePartition, newer: TimePartition) -> None:
    whole, parts = TimePartition.between(older.lo, newer.hi), (older.name, newer.name)
    tables = sorted(table.name for table in PARTITIONED)
    copying = [f"LOCK TABLE {table}_{part} IN SHARE MODE" for table in tables for part in parts]
    attaching: list[str] = []
    for table in tables:
        new = f"{table}_{whole.name}"
        copying.append(f"CREATE TABLE {new} ({like(table)}) {settings()}")
        copying += [f"INSERT INTO {new} SELECT * FROM {table}_{part}" for part in parts]
        copying.append(f"ANALYZE {new}")
        attaching += [f"DROP TABLE {table}_{part}" for part in parts]
        attached = f"ATTACH PARTITION {new} FOR VALUES {bounds_of(whole)}"
        attaching.append(f"ALTER TABLE {table} {attached}")
    for statement in copying:
        await connection.execute(text(statement))
    await seize(connection, [*tables, *older.tables, *newer.tables])
    for statement in attaching:
        await connection.execute(text(statement))
    rows = await connection.execute(
        partition_span.delete()
        .where(partition_span.c.name.in_(parts))
        .returning(partition_span.c.analysed_rows)
    )
    values = {"name": whole.name, "lo": whole.lo, "hi": whole.hi}
    total = sum(rows.scalars())
    await connection.execute(partition_span.insert().values(analysed_rows=total, **values))


async def vacuum(engine: AsyncEngine, table: str) -> None:
    """Remove a table's dead rows from its pages and its indexes; skip one that is busy or gone."""
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        try:
            # by default it leaves few dead rows in the indexes, which have their values
            await connection.execute(text(f"VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON) {table}"))
        except DBAPIError as error:
            if not isinstance(cause_of(error), BUSY):
                raise
