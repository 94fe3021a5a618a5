"""Producers that were heard long ago: their sums are kept, their rows go.

A proxy is a new producer at every boot, so rows would grow for ever. They are summed and not just
dropped: what was lost stays in the books.
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
from .producers import producers

# So long after it was last heard a producer's rows are kept. Reports older than this are not read
# again, and so never counted twice.
KEPT: Final = timedelta(days=90)
# Beyond so many those heard longest ago go earlier: a header is anyone's to fill.
MOST: Final = 10_000
_MOST_REASONS = 256
_LARGEST = 2**63 - 1
_ID = 1


@dataclass(frozen=True, slots=True)
class FormerProducers:
    """Sums over producers whose rows are gone, as an account names them; nothing waits any more.

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


async def former(connection: AsyncConnection) -> FormerProducers | None:
    """The sums; None where no producer was ever folded."""
    row = (await connection.execute(select(former_producers))).first()
    if row is None:
        return None
    return FormerProducers(**{name: value for name, value in row._mapping.items() if name != "id"})


async def fold(connection: AsyncConnection, *, limit: int, most: int = MOST) -> int:
    """Fold producers that were not heard for long, or are too many, into the sums; how many.

    One transaction, and only the retention service that leads does it: a crash changes nothing.
    """
    rows = list(await connection.execute(_OLD, {"kept": KEPT, "most": most, "limit": limit}))
    if not rows:
        return 0
    names = [row.producer for row in rows]
    found = await former(connection)
    sums = found or FormerProducers(heard_until=datetime.min.replace(tzinfo=UTC))
    heard_until = max(sums.heard_until, *(row.heard_at for row in rows))
    for account in await producers(connection, only=names, limit=len(names)):
        sums = _with(sums, account, heard_until)
    values = {name: getattr(sums, name) for name in FormerProducers.__slots__}
    await connection.execute(
        upsert(former_producers)
        .values(id=_ID, **values)
        .on_conflict_do_update(index_elements=("id",), set_=values)
    )
    for table in (producer_report, producer_sequence):
        await connection.execute(delete(table).where(table.c.producer.in_(names)))
    return len(names)


def _with(
    sums: FormerProducers, account: ProducerAccount, heard_until: datetime
) -> FormerProducers:
    told, holes = account.told, account.holes
    added: dict[str, Any] = {
        "producers": 1,
        "seen": told.seen,
        "sampled_out": told.sampled_out,
        "published": told.published,
        "events": told.events,
        # what waited for so long does not come any more
        "unsettled": told.unsettled + told.queued,
        "given": account.given,
        "arrived": account.arrived,
        "holes_dropped": holes.dropped,
        "unknown_tail": holes.unknown_tail + holes.waiting,
        "unexplained": holes.unexplained,
    }
    summed = {name: min(getattr(sums, name) + value, _LARGEST) for name, value in added.items()}
    dropped = Counter(dict(sums.dropped)) + Counter(dict(told.dropped))
    return FormerProducers(heard_until=heard_until, dropped=_few(dropped), **summed)


def _few(dropped: Counter[str]) -> dict[str, int]:
    """The reasons with most; they are what producers call them."""
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
