"""What of each producer's sequence numbers has arrived, beside what it reports."""

from collections.abc import Mapping, Sequence
from itertools import islice

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from .place import Place
from .producer_account import ProducerAccount
from .reports import reports_of

# Sequence numbers in one row, and in one statement.
_BLOCK = 10_000
_IN_ONE = 1_000


async def cover(
    connection: AsyncConnection, place: Place, sequences: Mapping[str, Sequence[int]]
) -> None:
    """Add the sequence numbers that came through a partition to what each producer's cover.

    Every producer is heard, though a header is anyone's to fill: what they are is bounded by the
    batch, and how many are kept by `former_producers.MOST`.
    """
    came = ((producer, number) for producer, numbers in sequences.items() for number in numbers)
    while some := list(islice(came, _IN_ONE)):
        producers, numbers = (list(column) for column in zip(*some, strict=True))
        values = {**place.values, "producers": producers, "numbers": numbers, "block": _BLOCK}
        await connection.execute(_COVER, values)


async def producers(
    connection: AsyncConnection, *, limit: int = 1000, only: Sequence[str] | None = None
) -> list[ProducerAccount]:
    """Each producer, over all partitions and reports; those of which most did not arrive first."""
    rows = list(await connection.execute(_PRODUCERS, {"limit": limit, "only": only}))
    reports = await reports_of(connection, [row.producer for row in rows])
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
