"""Creates missing partitions, with a width that depends on the rows of earlier ones."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import PARTITIONED, partition_span
from inference_store.inference.events import uid_floor
from inference_store.platform.failpoints import failpoint

from .locks import lock_catalogue
from .time_partition import TimePartition, TimePartitions, list_partitions
from .vacuum import format_parameters

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
            end = _end(TimePartitions(await list_partitions(connection, closed=True)), now)
        if end is None or end - now > AHEAD:
            return has_created
        await make_missing(engine, [end], target=target)
        has_created = True


def _end(partitions: TimePartitions, at: datetime) -> datetime | None:
    """Return the end of the adjoining partitions from an instant on; None if none has it."""
    end, partition = None, partitions.find(at)
    while partition is not None:
        end, partition = partition.hi, partitions.find(partition.hi)
    return end


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
    """Return the width of a partition at `at`, from the rows of the nearest older one."""
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


def settings() -> str:
    """Return the settings of a partition: a table's settings are not its partitions'."""
    return f"WITH ({format_parameters()})"


def bounds_of(partition: TimePartition) -> str:
    """Return a partition's bounds for DDL."""
    return f"FROM ('{uid_floor(partition.lo)}') TO ('{uid_floor(partition.hi)}')"
