"""Time partitions, and the catalogue of those that exist."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import PARTITIONED, partition_span


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
