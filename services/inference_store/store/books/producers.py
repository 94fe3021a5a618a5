"""What of each producer's sequence numbers has arrived."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from .place import Place

# Sequence numbers in one row, and producers heard in one batch of a partition.
_BLOCK = 10_000
_MOST_PRODUCERS = 100


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
