"""A span of time, and the catalogue of those that there are."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.prepared import Prepared
from inference_store.index.tables import PARTITIONED, partition_span

_LOCK = 7_302_002


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open span of time, [lo, hi), that is one partition of every table."""

    lo: datetime
    hi: datetime
    name: str

    @classmethod
    def between(cls, lo: datetime, hi: datetime) -> "Span":
        """The span [lo, hi), named after it; bounds are whole hours."""
        return cls(lo, hi, f"p{lo:%Y%m%dT%H}_{hi:%Y%m%dT%H}".lower())

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
    connection: AsyncConnection,
    *,
    lo: datetime | None = None,
    hi: datetime | None = None,
    closed: bool = False,
) -> list[Span]:
    """The spans that touch [lo, hi), newest first; `closed`: those being dropped as well."""
    rows = await _touching(closed).fetch(connection, {"since": lo, "until": hi})
    return [Span(row["lo"], row["hi"], row["name"]) for row in rows]


@cache
def _touching(closed: bool) -> Prepared:
    here = partition_span.c
    since, until = (bindparam(name, type_=here.lo.type) for name in ("since", "until"))
    query = select(here.lo, here.hi, here.name).where(
        since.is_(None) | (here.hi > since), until.is_(None) | (here.lo < until)
    )
    query = query if closed else query.where(here.state == "open")
    return Prepared(query.order_by(here.lo.desc()))


async def lock_catalogue(connection: AsyncConnection) -> None:
    """Let nobody else make, merge or drop a span until this transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
