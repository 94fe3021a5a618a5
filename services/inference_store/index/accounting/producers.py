"""The sequence numbers of each producer that arrived, and its account."""

from collections.abc import Mapping, Sequence
from itertools import islice

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from .partition_id import PartitionId
from .producer_account import ProducerAccount
from .reports import find_reports

# How many sequence numbers one row covers, and how many one statement adds.
_BLOCK = 10_000
_STATEMENT = 1_000


async def add_sequences(
    connection: AsyncConnection, partition_id: PartitionId, sequences: Mapping[str, Sequence[int]]
) -> None:
    """Add the sequence numbers that arrived through a partition to those of each producer.

    Anyone can send a header: the batch bounds how many there are here, `former_producers.MOST`
    how many stay.
    """
    arrived = ((producer, number) for producer, numbers in sequences.items() for number in numbers)
    while pairs := list(islice(arrived, _STATEMENT)):
        producers, numbers = (list(column) for column in zip(*pairs, strict=True))
        values = {
            **partition_id.values,
            "producers": producers,
            "numbers": numbers,
            "block": _BLOCK,
        }
        await connection.execute(_COVER, values)


async def list_producers(
    connection: AsyncConnection, *, limit: int = 1000, only: Sequence[str] | None = None
) -> list[ProducerAccount]:
    """Return the accounts of producers over all partitions, those that miss most events first."""
    rows = list(await connection.execute(_PRODUCERS, {"limit": limit, "only": only}))
    reports = await find_reports(connection, [row.producer for row in rows])
    return [
        ProducerAccount(
            producer=row.producer,
            highest=row.highest,
            arrived=row.arrived,
            arrived_reported=row.arrived_reported,
            reports=reports.get(row.producer, ()),
        )
        for row in rows
    ]


_COVER = text(
    "INSERT INTO producer_sequence AS seen"
    " (producer, cluster, topic, epoch, partition, block, covered)"
    " SELECT producer, :cluster, :topic, :epoch, :partition, n / :block,"
    " range_agg(int8range(n, n + 1))"
    " FROM unnest(CAST(:producers AS text[]), CAST(:numbers AS bigint[])) AS came (producer, n)"
    " GROUP BY producer, n / :block"
    " ON CONFLICT (producer, cluster, topic, epoch, partition, block) DO UPDATE"
    " SET covered = seen.covered + excluded.covered, updated_at = now()"
)
_CHOSEN = "(CAST(:only AS text[]) IS NULL OR producer = ANY(CAST(:only AS text[])))"
_PRODUCERS = text(
    "WITH came AS (SELECT producer, range_agg(covered) AS covered FROM producer_sequence"
    " WHERE " + _CHOSEN + " GROUP BY producer),"
    " told AS (SELECT producer, max(highest_sequence) AS reported FROM producer_report"
    " WHERE " + _CHOSEN + " GROUP BY producer)"
    " SELECT producer, coalesce(highest, 0) AS highest, coalesce(arrived, 0) AS arrived,"
    " coalesce(below, 0) AS arrived_reported FROM told FULL JOIN came USING (producer)"
    " CROSS JOIN LATERAL (SELECT max(upper(r) - 1) AS highest,"
    # numbers begin with 1, and the highest reported may be the highest that there is
    " sum(upper(r) - greatest(lower(r), 1))::bigint AS arrived,"
    " sum(greatest(0, least(upper(r) - 1, coalesce(reported, 0)) - greatest(lower(r), 1) + 1))"
    "::bigint AS below FROM unnest(covered) AS r) AS counted"
    " ORDER BY greatest(coalesce(highest, 0), coalesce(reported, 0)) - coalesce(arrived, 0) DESC,"
    " producer LIMIT :limit"
)
