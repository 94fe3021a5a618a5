"""What was erased does not come back with a late redelivery.

It is remembered one by one; where a span of time was dropped whole, as lists of uids, a row for
each batch. So an event of the same time that was never here is told from a redelivery.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, func, literal, select, tuple_, type_coerce
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.identities import Identity, among, by_model
from inference_store.index.tables import (
    erased_batch,
    erased_span,
    erasing,
    partition_span,
    tombstone,
)
from inference_store.inference.events import received_at_of, uid_floor

_FORGOTTEN = 10_000


async def find(
    connection: AsyncConnection, events: Iterable[tuple[int, UUID, datetime]]
) -> set[Identity]:
    """Those of (model, uid, received_at) that were erased or are being erased."""
    received = {(model, uid): at for model, uid, at in events}
    found: set[Identity] = set()
    for model, uids in by_model(received):
        whole = erasing.c.scope == "inference"
        query = select(erasing.c.uid).where(among(erasing, model, uids), whole)
        gone = set((await connection.execute(query)).scalars())
        times = {uid: received[model, uid] for uid in uids}
        gone |= await _erased(connection, model, times)
        found |= {(model, uid) for uid in gone}
    return found


async def erased(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> set[UUID]:
    """Those that were erased."""
    return await _erased(connection, model, {uid: received_at_of(uid) for uid in uids})


async def add_batch(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Remember what goes with a span."""
    listed = b"".join(uid.bytes for uid in sorted(uids))
    values = {"model": model, "first": min(uids), "last": max(uids), "uids": listed}
    await connection.execute(erased_batch.insert().values(values))
    # a span is remembered as long as the last that went with it
    at, here = received_at_of(uids[0]), erased_span.c
    where = (here.model == model, here.lo <= at, here.hi > at, here.listed)
    await connection.execute(erased_span.update().where(*where).values(erased_at=func.now()))


async def since(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], at: datetime
) -> set[UUID]:
    """Those of these that were erased at that time or later, each by itself."""
    query = select(tombstone.c.uid).where(
        among(tombstone, model, uids), tombstone.c.erased_at >= at
    )
    return set((await connection.execute(query)).scalars())


async def times(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[Identity, datetime]:
    """When each was erased last, or its objects were claimed to be; without what was erased with a
    span of time."""
    found: dict[Identity, datetime] = {}
    for model, uids in by_model(identities):
        gone = select(tombstone.c.uid, tombstone.c.erased_at.label("at"))
        claimed = select(erasing.c.uid, func.max(erasing.c.claimed_at).label("at"))
        claimed = claimed.where(erasing.c.scope == "inference", erasing.c.claimed_at.is_not(None))
        for query, table in ((gone, tombstone), (claimed.group_by(erasing.c.uid), erasing)):
            for row in await connection.execute(query.where(among(table, model, uids))):
                known = found.get((model, row.uid), row.at)
                found[model, row.uid] = max(known, row.at)
    return found


async def forget(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int = _FORGOTTEN
) -> int:
    """Forget what was erased so long ago that no event of it can still arrive; how many rows, at
    most `limit` of each table: again until it is 0."""
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    forgotten = 0
    for table in (tombstone, erased_batch, erased_span):
        keys = list(table.primary_key)
        old = select(*keys).where(table.c.erased_at < before, *_over(table)).limit(limit)
        gone = table.delete().where(tuple_(*keys).in_(old))
        forgotten += (await connection.execute(gone)).rowcount
    return forgotten


def _over(table: Table) -> list[ColumnElement[bool]]:
    """More is added to the lists of a span for as long as it is being dropped."""
    if table is not erased_span:
        return []
    here, span = erased_span.c, partition_span.c
    dropping = select(span.name).where(
        span.state == "dropping", span.lo < here.hi, span.hi > here.lo
    )
    return [~dropping.exists()]


async def _erased(
    connection: AsyncConnection, model: int, times: Mapping[UUID, datetime]
) -> set[UUID]:
    query = select(tombstone.c.uid).where(among(tombstone, model, list(times)))
    gone = set((await connection.execute(query)).scalars())
    here = erased_span.c
    dropped = select(here.lo, here.hi, here.listed).where(
        here.model == model, here.lo <= max(times.values()), here.hi > min(times.values())
    )
    for row in await connection.execute(dropped):
        there = [uid for uid, at in times.items() if row.lo <= at < row.hi]
        if not row.listed:
            gone |= set(there)
        elif left := set(there) - gone:
            gone |= await _listed(connection, model, row.lo, left)
    return gone


async def _listed(
    connection: AsyncConnection, model: int, lo: datetime, uids: Collection[UUID]
) -> set[UUID]:
    """Those that went with a span which begins at `lo`."""
    asked = func.unnest(literal(sorted(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    some = select(asked.column_valued("uid")).subquery()
    here, uid = erased_batch.c, some.c.uid
    place = func.pg_catalog.position(here.uids, type_coerce(func.uuid_send(uid), BYTEA))
    query = select(uid).where(
        here.model == model, here.first >= uid_floor(lo), here.first <= uid, here.last >= uid
    )
    return set((await connection.execute(query.where(place > 0))).scalars())
