"""Producers that have not reported for long: their sums stay, their rows are deleted.

A proxy is a new producer at every boot, so the rows would grow without end. They are summed, not
only deleted: what was lost stays in the accounts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import former_producers, producer_report, producer_sequence

from .producer_account import ProducerAccount
from .producers import list_producers

# A producer's rows stay this long after its last report. Older reports are not read again, so none
# is counted twice.
FORMER_AFTER: Final = timedelta(days=90)
# Of more producers than this those that reported longest ago are folded earlier: anyone can send a
# header.
MOST: Final = 10_000
_MOST_REASONS = 256
_LARGEST = 2**63 - 1
_ID = 1


@dataclass(frozen=True, slots=True)
class FormerProducers:
    """The sums over producers whose rows are deleted; nothing of them is waiting any more.

    seen = sampled_out + the sum of dropped + unsettled + published
    given = arrived + holes_dropped + unknown_tail + unexplained
    """

    heard_until: datetime
    producers: int = 0
    seen: int = 0
    sampled_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    published: int = 0
    events: int = 0
    unsettled: int = 0
    given: int = 0
    arrived: int = 0
    holes_dropped: int = 0
    unknown_tail: int = 0
    unexplained: int = 0


async def find_former_producers(connection: AsyncConnection) -> FormerProducers | None:
    """Return the sums; None if no producer was ever folded."""
    row = (await connection.execute(select(former_producers))).first()
    if row is None:
        return None
    return FormerProducers(**{name: value for name, value in row._mapping.items() if name != "id"})


async def fold_producers(connection: AsyncConnection, *, limit: int, most: int = MOST) -> int:
    """Fold producers that have not reported for long, or are too many; return how many.

    It is one transaction, and only the leader of retention runs it: a crash changes nothing.
    """
    rows = list(
        await connection.execute(_OLD, {"kept": FORMER_AFTER, "most": most, "limit": limit})
    )
    if not rows:
        return 0
    names = [row.producer for row in rows]
    former = await find_former_producers(connection)
    sums = former or FormerProducers(heard_until=datetime.min.replace(tzinfo=UTC))
    heard_until = max(sums.heard_until, *(row.heard_at for row in rows))
    for account in await list_producers(connection, only=names, limit=len(names)):
        sums = _add_account(sums, account, heard_until)
    values = {name: getattr(sums, name) for name in FormerProducers.__slots__}
    await connection.execute(
        upsert(former_producers)
        .values(id=_ID, **values)
        .on_conflict_do_update(index_elements=("id",), set_=values)
    )
    for table in (producer_report, producer_sequence):
        await connection.execute(delete(table).where(table.c.producer.in_(names)))
    return len(names)


def _add_account(
    sums: FormerProducers, account: ProducerAccount, heard_until: datetime
) -> FormerProducers:
    totals, gaps = account.totals, account.gaps
    added: dict[str, Any] = {
        "producers": 1,
        "seen": totals.seen,
        "sampled_out": totals.sampled_out,
        "published": totals.published,
        "events": totals.events,
        # events that have waited for so long will not arrive
        "unsettled": totals.unsettled + totals.queued,
        "given": account.given,
        "arrived": account.arrived,
        "holes_dropped": gaps.dropped,
        "unknown_tail": gaps.unknown_tail + gaps.waiting,
        "unexplained": gaps.unexplained,
    }
    summed = {name: min(getattr(sums, name) + value, _LARGEST) for name, value in added.items()}
    dropped = Counter(dict(sums.dropped)) + Counter(dict(totals.dropped))
    return FormerProducers(heard_until=heard_until, dropped=_limit_reasons(dropped), **summed)


def _limit_reasons(dropped: Counter[str]) -> dict[str, int]:
    """Return the most frequent reasons: their names come from producers, and may be many."""
    return {reason: min(n, _LARGEST) for reason, n in dropped.most_common(_MOST_REASONS)}


_OLD = text(
    "SELECT producer, heard_at FROM (SELECT producer, max(heard_at) AS heard_at,"
    " row_number() OVER (ORDER BY max(heard_at) DESC, producer) AS nth"
    " FROM (SELECT producer, heard_at FROM producer_report"
    " UNION ALL SELECT producer, updated_at FROM producer_sequence) AS each_heard"
    " GROUP BY producer) AS heard"
    " WHERE heard_at < now() - CAST(:kept AS interval) OR nth > :most"
    " ORDER BY heard_at LIMIT :limit"
)
