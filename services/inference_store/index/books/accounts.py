"""The books as they are shown: every partition's counts, and whether they close."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import dead_letter, kafka_partition, lost_offsets

from .place import Outcome, Place


@dataclass(frozen=True, slots=True)
class Account:
    """One partition's books: `next - first` is the sum of all counts."""

    place: Place
    first: int
    next: int
    began: str
    counts: Mapping[Outcome, int]
    dead_open: int
    dead_discarded: int
    lost: Sequence[tuple[int, int]]
    updated_at: datetime

    @property
    def closes(self) -> bool:
        """Whether every offset read has exactly one state."""
        return sum(self.counts.values()) == self.next - self.first


async def accounts(connection: AsyncConnection) -> list[Account]:
    """The books of every partition and epoch."""
    letters = await _letters(connection)
    lost = await _lost(connection)
    rows = await connection.execute(
        select(kafka_partition).order_by(
            *(kafka_partition.c[name] for name in ("cluster", "topic", "partition", "epoch"))
        )
    )
    return [_account(row, letters, lost) for row in rows]


def _account(
    row: Row[tuple[object, ...]],
    letters: Mapping[tuple[Place, str], int],
    lost: Mapping[Place, Sequence[tuple[int, int]]],
) -> Account:
    place = Place(row.cluster, row.topic, row.epoch, row.partition)
    # what was discarded stays so when retention has removed the letter
    open = sum(letters.get((place, state), 0) for state in ("open", "redrive"))
    return Account(
        place=place,
        first=row.first,
        next=row.next,
        began=row.began,
        counts={outcome: getattr(row, outcome.value) for outcome in Outcome},
        dead_open=open,
        dead_discarded=row.dead - open,
        lost=lost.get(place, ()),
        updated_at=row.updated_at,
    )


async def _letters(connection: AsyncConnection) -> Counter[tuple[Place, str]]:
    columns = [dead_letter.c[name] for name in ("cluster", "topic", "epoch", "partition", "state")]
    rows = await connection.execute(select(*columns, func.count()).group_by(*columns))
    return Counter({(Place(*row[:4]), row[4]): row[5] for row in rows})


async def _lost(connection: AsyncConnection) -> dict[Place, list[tuple[int, int]]]:
    found: dict[Place, list[tuple[int, int]]] = {}
    for row in await connection.execute(select(lost_offsets).order_by(lost_offsets.c.lo)):
        place = Place(row.cluster, row.topic, row.epoch, row.partition)
        found.setdefault(place, []).append((row.lo, row.hi))
    return found
