"""The books: each Kafka partition's next offset, and what became of those before it.

The next offset moves in the transaction that writes the rows, and only from where it was:
`UPDATE … SET next = :hi WHERE next = :lo`. Where no row moves, another consumer was here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice

from sqlalchemy import ColumnElement, Row, and_, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import dead_letter, kafka_partition, lost_offsets

# Sequence numbers in one row, and producers heard in one batch of a partition.
_BLOCK = 10_000
_MOST_PRODUCERS = 100


class Outcome(StrEnum):
    """What became of an offset: the one list of its states. Each is a column of the books."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    PARKED = "parked"
    EXPIRED = "expired"
    ERASED_AGAIN = "erased_again"
    LOST = "lost"
    NOT_DELIVERED = "not_delivered"


class Fenced(Exception):
    """Another consumer has moved this partition on: drop what is in hand and look again."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A partition of a topic in a cluster; a topic made anew is a new epoch."""

    cluster: str
    topic: str
    epoch: int
    partition: int

    @property
    def values(self) -> dict[str, str | int]:
        """Its columns."""
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "epoch": self.epoch,
            "partition": self.partition,
        }


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on, and the record by which the topic is recognised."""

    place: Place
    next: int
    last_offset: int | None
    last_hash: bytes | None


def _at(place: Place) -> ColumnElement[bool]:
    return and_(*(kafka_partition.c[name] == value for name, value in place.values.items()))


def _position(row: Row[tuple[object, ...]]) -> Position:
    place = Place(row.cluster, row.topic, row.epoch, row.partition)
    return Position(place, row.next, row.last_offset, row.last_hash)


async def position(
    connection: AsyncConnection, *, cluster: str, topic: str, partition: int
) -> Position | None:
    """Where reading of a partition goes on, in its newest epoch; None where it never began."""
    table = kafka_partition.c
    query = (
        select(kafka_partition)
        .where(table.cluster == cluster, table.topic == topic, table.partition == partition)
        .order_by(table.epoch.desc())
        .limit(1)
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _position(row)


async def begin(connection: AsyncConnection, place: Place, *, first: int, began: str) -> None:
    """Open the books of a partition at its first offset; two at once make one."""
    values = {**place.values, "first": first, "next": first, "began": began}
    await connection.execute(upsert(kafka_partition).values(values).on_conflict_do_nothing())


async def hold(connection: AsyncConnection, place: Place, lo: int) -> None:
    """Lock a partition's row; raises Fenced where its next offset is not `lo`."""
    # not FOR UPDATE: that would wait for everyone who adds a dead letter or a parked event
    query = select(kafka_partition.c.next).where(_at(place)).with_for_update(key_share=True)
    if await connection.scalar(query) != lo:
        raise Fenced(f"{place} is not at {lo} any more")


async def lock(connection: AsyncConnection, places: Iterable[Place]) -> None:
    """Lock partitions' rows, wherever they are; one order everywhere, the books before all else."""
    for place in sorted(set(places)):
        query = select(kafka_partition.c.next).where(_at(place)).with_for_update(key_share=True)
        await connection.execute(query)


async def move(
    connection: AsyncConnection,
    place: Place,
    *,
    lo: int,
    hi: int,
    outcomes: Mapping[Outcome, int],
    last: tuple[int, bytes] | None,
) -> None:
    """Move the next offset from `lo` to `hi`, and count what became of the offsets between.

    Raises Fenced where it is not at `lo` any more, ValueError where the books would not close.
    """
    if sum(outcomes.values()) != hi - lo:
        raise ValueError(f"{place}: {dict(outcomes)} does not account for [{lo}, {hi})")
    changes: dict[str, object] = {"next": hi, "updated_at": func.now(), **_added(outcomes)}
    if last is not None:
        changes |= {"last_offset": last[0], "last_hash": last[1]}
    moved = await connection.execute(
        update(kafka_partition).where(_at(place), kafka_partition.c.next == lo).values(changes)
    )
    if moved.rowcount != 1:
        raise Fenced(f"{place} is not at {lo} any more")


def _added(outcomes: Mapping[Outcome, int]) -> dict[str, ColumnElement[int]]:
    return {
        outcome.value: kafka_partition.c[outcome.value] + count
        for outcome, count in outcomes.items()
        if count
    }


async def change(
    connection: AsyncConnection, changes: Mapping[Place, Mapping[Outcome, int]]
) -> None:
    """Move offsets from one state to another (a redrive): the counts of each place sum to 0."""
    for place in sorted(changes):
        if sum(changes[place].values()) != 0:
            raise ValueError(f"{place}: {dict(changes[place])} would not close")
        added = _added(changes[place])
        if added:
            await connection.execute(update(kafka_partition).where(_at(place)).values(added))


async def name_lost(connection: AsyncConnection, place: Place, *, lo: int, hi: int) -> None:
    """Write down offsets that the log dropped before they were read: [lo, hi)."""
    values = {**place.values, "lo": lo, "hi": hi}
    await connection.execute(upsert(lost_offsets).values(values).on_conflict_do_nothing())


async def cover(
    connection: AsyncConnection, place: Place, sequences: Mapping[str, Sequence[int]]
) -> None:
    """Add the sequence numbers that came through a partition to what each producer's cover.

    Only the first 100 producers are heard: a header is anyone's to fill.
    """
    statement = text(
        "INSERT INTO producer_sequence AS seen"
        " (producer, cluster, topic, epoch, partition, block, covered)"
        " SELECT producer, :cluster, :topic, :epoch, :partition, n / :block,"
        " range_agg(int8range(n, n + 1))"
        " FROM unnest(CAST(:producers AS text[]), CAST(:numbers AS bigint[])) AS came (producer, n)"
        " GROUP BY producer, n / :block"
        " ON CONFLICT (producer, cluster, topic, epoch, partition, block) DO UPDATE"
        " SET covered = seen.covered + excluded.covered, updated_at = now()"
    )
    came = [
        (producer, number)
        for producer, numbers in islice(sequences.items(), _MOST_PRODUCERS)
        for number in numbers
    ]
    if came:
        producers, numbers = (list(column) for column in zip(*came, strict=True))
        values = {**place.values, "producers": producers, "numbers": numbers, "block": _BLOCK}
        await connection.execute(statement, values)


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
    discarded = letters.get((place, "discarded"), 0)
    return Account(
        place=place,
        first=row.first,
        next=row.next,
        began=row.began,
        counts={outcome: getattr(row, outcome.value) for outcome in Outcome},
        dead_open=row.dead - discarded,
        dead_discarded=discarded,
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


@dataclass(frozen=True, slots=True)
class ProducerAccount:
    """What arrived of one producer's sequence 1, 2, 3…: a hole is a capture not delivered."""

    producer: str
    highest: int
    arrived: int

    @property
    def missing(self) -> int:
        """Sequence numbers below the highest that never arrived."""
        return self.highest - self.arrived


async def producers(connection: AsyncConnection, *, limit: int = 1000) -> list[ProducerAccount]:
    """Each producer's sequences, over all partitions; most missing first."""
    statement = text(
        "SELECT producer, max(upper(r)) - 1 AS highest, sum(upper(r) - lower(r))::bigint AS arrived"
        " FROM (SELECT producer, unnest(range_agg(covered)) AS r FROM producer_sequence"
        " GROUP BY producer) AS merged GROUP BY producer"
        " ORDER BY max(upper(r)) - sum(upper(r) - lower(r)) DESC, producer LIMIT :limit"
    )
    rows = await connection.execute(statement, {"limit": limit})
    return [ProducerAccount(row[0], row[1], row[2]) for row in rows]
