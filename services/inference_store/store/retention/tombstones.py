"""What was erased does not come back with a late redelivery."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.tables import erased_span, erasing, tombstone

from .identities import Identity, among, by_model


async def find(
    connection: AsyncConnection, events: Iterable[tuple[int, UUID, datetime]]
) -> set[Identity]:
    """Those of (model, uid, received_at) that were erased or are being erased.

    Remembered one by one, or as a span of time of the model that was dropped whole.
    """
    received = {(model, uid): at for model, uid, at in events}
    found: set[Identity] = set()
    for model, uids in by_model(received):
        for table in (tombstone, erasing):
            query = select(table.c.uid).where(among(table, model, uids))
            if table is erasing:
                query = query.where(erasing.c.scope == "inference")
            found |= {(model, uid) for uid in (await connection.execute(query)).scalars()}
        instants = [received[model, uid] for uid in uids]
        spans = await _spans(connection, model, min(instants), max(instants))
        found |= {
            (model, uid)
            for uid, at in zip(uids, instants, strict=True)
            if any(lo <= at < hi for lo, hi in spans)
        }
    return found


async def forget(connection: AsyncConnection, *, older_than_seconds: float) -> int:
    """Forget what was erased so long ago that no event of it can still arrive; how many."""
    limit = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    forgotten = 0
    for table in (tombstone, erased_span):
        old = table.delete().where(table.c.erased_at < limit)
        forgotten += (await connection.execute(old)).rowcount
    return forgotten


async def _spans(
    connection: AsyncConnection, model: int, first: datetime, last: datetime
) -> list[tuple[datetime, datetime]]:
    query = select(erased_span.c.lo, erased_span.c.hi).where(
        erased_span.c.model == model, erased_span.c.lo <= last, erased_span.c.hi > first
    )
    return [(row.lo, row.hi) for row in await connection.execute(query)]
