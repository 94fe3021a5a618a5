"""The spans of time that the partitioned tables are cut into, and their life.

A span is made before the first event that falls into it is written, under an advisory lock
and in a transaction of its own: a crash leaves an empty span. Widths adapt to how full the
last spans became, so that one holds near `target` inferences; old times get wide spans.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from .events.uid import uid_floor
from .failpoints import failpoint
from .tables import PARTITIONED, inference, partition_span

_LOCK = 7_302_002
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# Widths nest into each other when aligned to _EPOCH.
_WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 24, 24 * 7, 24 * 28))
_DEFAULT_WIDTH = timedelta(days=1)
_OLD = timedelta(days=60)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open span of time, [lo, hi), that is one partition of every table."""

    lo: datetime
    hi: datetime
    name: str

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of its partitions, children first and the parent's last."""
        return tuple(f"{table.name}_{self.name}" for table in reversed(PARTITIONED))


class Spans:
    """What is known of the catalogue: a writer's answer to "is there a place for this"."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = sorted(spans)
        self._starts = [span.lo for span in self._spans]

    def find(self, at: datetime) -> Span | None:
        """The span an instant falls into."""
        place = bisect_right(self._starts, at) - 1
        if place >= 0 and at < self._spans[place].hi:
            return self._spans[place]
        return None

    def missing(self, instants: Iterable[datetime]) -> list[datetime]:
        """Those that fall into no span."""
        return [at for at in instants if self.find(at) is None]

    def gap(self, at: datetime) -> tuple[datetime | None, datetime | None]:
        """The end of the span before `at` and the start of the one after it."""
        place = bisect_right(self._starts, at)
        before = self._spans[place - 1].hi if place else None
        after = self._spans[place].lo if place < len(self._spans) else None
        return before, after


async def spans(
    connection: AsyncConnection, *, lo: datetime | None = None, hi: datetime | None = None
) -> list[Span]:
    """The spans that touch [lo, hi), newest first."""
    query = select(partition_span.c.name, partition_span.c.lo, partition_span.c.hi)
    if lo is not None:
        query = query.where(partition_span.c.hi > lo)
    if hi is not None:
        query = query.where(partition_span.c.lo < hi)
    rows = await connection.execute(query.order_by(partition_span.c.lo.desc()))
    return [Span(lo=row.lo, hi=row.hi, name=row.name) for row in rows]


async def make_missing(engine: AsyncEngine, instants: Sequence[datetime], *, target: int) -> Spans:
    """The catalogue, with a span for each of `instants`; makes what is missing, one at a time."""
    async with engine.connect() as connection:
        known = Spans(await spans(connection))
    for at in sorted(set(instants)):
        if known.find(at) is None:
            failpoint("partitions.create.before")
            async with engine.begin() as connection:
                await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                known = Spans(await spans(connection))
                if known.find(at) is None:
                    await _make(connection, known, at, target)
                    known = Spans(await spans(connection))
            failpoint("partitions.create.after")
    return known


async def _make(connection: AsyncConnection, known: Spans, at: datetime, target: int) -> None:
    width = await _width(connection, at, target)
    lo = _EPOCH + (at - _EPOCH) // width * width
    hi = lo + width
    before, after = known.gap(at)
    lo = max(lo, before) if before is not None else lo
    hi = min(hi, after) if after is not None else hi
    await create(connection, Span(lo, hi, f"p{lo:%Y%m%dT%H}_{hi:%Y%m%dT%H}".lower()))


async def create(connection: AsyncConnection, span: Span) -> None:
    """One partition of every table, and the catalogue's row. The caller has the lock."""
    bounds = f"FROM ('{uid_floor(span.lo)}') TO ('{uid_floor(span.hi)}')"
    for table in PARTITIONED:
        name = f"{table.name}_{span.name}"
        await connection.execute(
            text(f"CREATE TABLE {name} PARTITION OF {table.name} FOR VALUES {bounds}")
        )
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


async def analyse(engine: AsyncEngine, *, growth: float = 2.0) -> int:
    """Gather statistics of partitions that have doubled since; how many were.

    A partition without statistics is planned for one row: 60,000 rows then cost 42 ms, not 0.1.
    """
    async with engine.connect() as connection:
        known = await spans(connection)
    done = 0
    for span in known:
        done += await _analyse(engine, span, growth)
    return done


async def _analyse(engine: AsyncEngine, span: Span, growth: float) -> bool:
    here = partition_span.c.name == span.name
    async with engine.begin() as connection:
        # One at a time: whoever is second has nothing to do.
        seen = await connection.scalar(
            select(partition_span.c.analysed_rows).where(here).with_for_update(skip_locked=True)
        )
        rows = await _rows(connection, span)
        if seen is None or rows < max(seen * growth, 1000):
            return False
        await connection.execute(text("SET LOCAL lock_timeout = '2s'"))
        for table in span.tables:
            await connection.execute(text(f"ANALYZE {table}"))
        await connection.execute(partition_span.update().where(here).values(analysed_rows=rows))
    return True


async def _rows(connection: AsyncConnection, span: Span) -> int:
    """Rows of a span's inferences, near enough: the statistics' own count."""
    query = text("SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = :name")
    rows = await connection.scalar(query, {"name": f"{inference.name}_{span.name}"})
    return int(rows or 0)


async def drop(engine: AsyncEngine, span: Span, *, lock_timeout: str = "2s") -> None:
    """Drop a span's partitions; repeatable, for each step may have been done before a crash.

    Order: detach (concurrently: readers go on), drop, then the catalogue's row. A reader that
    still has the catalogue's row finds the parent without it, which is what it should see.
    """
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        await connection.execute(text(f"SET lock_timeout = '{lock_timeout}'"))
        try:
            for table in span.tables:
                await _drop_one(connection, table)
            await connection.execute(
                partition_span.delete().where(partition_span.c.name == span.name)
            )
        finally:
            await connection.execute(text("RESET lock_timeout"))


async def _drop_one(connection: AsyncConnection, table: str) -> None:
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
        how = "FINALIZE" if attached[0] else "CONCURRENTLY"
        await connection.execute(text(f"ALTER TABLE {parent} DETACH PARTITION {table} {how}"))
    await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
