"""Making the spans that are missing, as wide as those before them turned out to need."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import PARTITIONED, partition_span
from inference_store.inference.events import uid_floor
from inference_store.platform.failpoints import failpoint

from .span import Span, Spans, lock_catalogue, spans
from .vacuum import told

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# Widths nest into each other when aligned to _EPOCH.
_WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 24, 24 * 7, 24 * 28))
_DEFAULT_WIDTH = timedelta(days=1)
_OLD = timedelta(days=60)
# An hour's traffic never waits for the first event of the next span to make it.
AHEAD = timedelta(hours=1)


async def make_missing(engine: AsyncEngine, instants: Sequence[datetime], *, target: int) -> Spans:
    """The catalogue, with a span for each of `instants`; makes what is missing, one at a time."""
    async with engine.connect() as connection:
        known = Spans(await spans(connection, closed=True))
    for at in sorted(set(instants)):
        if known.find(at) is None:
            failpoint("partitions.create.before")
            async with engine.begin() as connection:
                await lock_catalogue(connection)
                known = Spans(await spans(connection, closed=True))
                if known.find(at) is None:
                    await _make(connection, known, at, target)
                    known = Spans(await spans(connection, closed=True))
            failpoint("partitions.create.after")
    return known


async def make_ahead(engine: AsyncEngine, *, target: int, at: datetime | None = None) -> bool:
    """Make spans until they reach further than AHEAD from now, or `at`; where none is in use, none.
    Whether it did.

    One may not be enough: a span ends at a border of its width, minutes after it begins.
    """
    now, made = at or datetime.now(UTC), False
    while True:
        async with engine.connect() as connection:
            end = _end(Spans(await spans(connection, closed=True)), now)
        if end is None or end - now > AHEAD:
            return made
        await make_missing(engine, [end], target=target)
        made = True


def _end(known: Spans, at: datetime) -> datetime | None:
    """Where the spans end that follow one another from an instant; None if none has it."""
    end, span = None, known.find(at)
    while span is not None:
        end, span = span.hi, known.find(span.hi)
    return end


async def _make(connection: AsyncConnection, known: Spans, at: datetime, target: int) -> None:
    width = await _width(connection, at, target)
    lo = _EPOCH + (at - _EPOCH) // width * width
    hi = lo + width
    before, after = known.gap(at)
    lo = max(lo, before) if before is not None else lo
    hi = min(hi, after) if after is not None else hi
    await create(connection, Span.between(lo, hi))


async def create(connection: AsyncConnection, span: Span) -> None:
    """One partition of every table, and the catalogue's row. The caller has the lock.

    Made apart and attached: `CREATE TABLE … PARTITION OF` would lock the parents against their
    readers, and deadlock with them. Raises the database's trouble after waiting 5 s for a lock.
    """
    await connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    for table in PARTITIONED:
        parent, name = table.name, f"{table.name}_{span.name}"
        for statement in (
            f"CREATE TABLE {name} ({like(parent)}) {settings()}",
            f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES {bounds_of(span)}",
        ):
            await connection.execute(text(statement))
    values = {"name": span.name, "lo": span.lo, "hi": span.hi}
    await connection.execute(partition_span.insert().values(values))


async def _width(connection: AsyncConnection, at: datetime, target: int) -> timedelta:
    """How wide a span at `at` should be, from how full the nearest older one became."""
    near = (
        select(partition_span.c.lo, partition_span.c.hi, partition_span.c.analysed_rows)
        .where(partition_span.c.hi <= at, partition_span.c.analysed_rows > 0)
        .order_by(partition_span.c.lo.desc())
        .limit(1)
    )
    row = (await connection.execute(near)).first()
    if row is None:
        return _WIDTHS[-1] if datetime.now(UTC) - at > _OLD else _DEFAULT_WIDTH
    lo, hi, rows = row
    wanted = (min(hi, datetime.now(UTC)) - lo) * (target / rows)
    return max((width for width in _WIDTHS if width <= wanted), default=_WIDTHS[0])


def like(parent: str) -> str:
    """A table's columns and all that a partition must share with it, as DDL spells them."""
    shared = ("DEFAULTS", "CONSTRAINTS", "INDEXES", "STORAGE", "COMPRESSION")
    return " ".join([f"LIKE {parent}", *(f"INCLUDING {what}" for what in shared)])


def settings() -> str:
    """What a partition is told besides: a table's settings are not its partitions'."""
    return f"WITH ({told()})"


def bounds_of(span: Span) -> str:
    """A partition's bounds, as its DDL spells them."""
    return f"FROM ('{uid_floor(span.lo)}') TO ('{uid_floor(span.hi)}')"
