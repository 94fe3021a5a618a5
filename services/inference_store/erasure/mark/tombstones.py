"""Records what was erased, so that a late redelivery does not restore it.

Each inference is recorded by itself. If a span of time was dropped as a whole, its uids are
recorded as lists, one row for each batch, so that a redelivery differs from an event of the same
time that was never here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, func, literal, select, tuple_, type_coerce
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.inferences import Identity, among, by_model
from inference_store.index.tables import (
    erased_batch,
    erased_span,
    erasing,
    partition_span,
    tombstone,
)
from inference_store.inference.events import received_at_of, uid_floor

_FORGOTTEN = 10_000


async def find_erased(
    connection: AsyncConnection, events: Iterable[tuple[int, UUID, datetime]]
) -> set[Identity]:
    """Return those of (model, uid, received_at) that were erased or are being erased."""
    received = {(model, uid): at for model, uid, at in events}
    erased: set[Identity] = set()
    for model, uids in by_model(received):
        whole = erasing.c.scope == "inference"
        query = select(erasing.c.uid).where(among(erasing, model, uids), whole)
        erased_uids = set((await connection.execute(query)).scalars())
        times = {uid: received[model, uid] for uid in uids}
        erased_uids |= await _find_erased(connection, model, times)
        erased |= {(model, uid) for uid in erased_uids}
    return erased


async def list_erased(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> set[UUID]:
    """Return the uids that were erased."""
    return await _find_erased(connection, model, {uid: received_at_of(uid) for uid in uids})


async def add_batch(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Record the uids that are deleted with a span."""
    listed = b"".join(uid.bytes for uid in sorted(uids))
    values = {"model": model, "first": min(uids), "last": max(uids), "uids": listed}
    await connection.execute(erased_batch.insert().values(values))
    # a span is recorded as long as the last uid that was deleted with it
    at, here = received_at_of(uids[0]), erased_span.c
    where = (here.model == model, here.lo <= at, here.hi > at)
    await connection.execute(erased_span.update().where(*where).values(erased_at=func.now()))


async def find_since(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], at: datetime
) -> set[UUID]:
    """Return the uids that were erased at that time or later, each by itself."""
    query = select(tombstone.c.uid).where(
        among(tombstone, model, uids), tombstone.c.erased_at >= at
    )
    return set((await connection.execute(query)).scalars())


async def find_times(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[Identity, datetime]:
    """Return when each was last erased, or when its objects were claimed for that.

    What was erased with a span of time is left out.
    """
    times: dict[Identity, datetime] = {}
    for model, uids in by_model(identities):
        erased = select(tombstone.c.uid, tombstone.c.erased_at.label("at"))
        claimed = select(erasing.c.uid, func.max(erasing.c.claimed_at).label("at"))
        claimed = claimed.where(erasing.c.scope == "inference", erasing.c.claimed_at.is_not(None))
        for query, table in ((erased, tombstone), (claimed.group_by(erasing.c.uid), erasing)):
            for row in await connection.execute(query.where(among(table, model, uids))):
                earlier = times.get((model, row.uid), row.at)
                times[model, row.uid] = max(earlier, row.at)
    return times


async def delete_old(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int = _FORGOTTEN
) -> int:
    """Delete the records of what was erased so long ago that no event of it can still arrive.

    Return how many rows, at most `limit` of each table: call it again until it is 0.
    """
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    deleted = 0
    for table in (tombstone, erased_batch, erased_span):
        keys = list(table.primary_key)
        old = (
            select(*keys).where(table.c.erased_at < before, *_exclude_dropping(table)).limit(limit)
        )
        expired = table.delete().where(tuple_(*keys).in_(old))
        deleted += (await connection.execute(expired)).rowcount
    return deleted


def _exclude_dropping(table: Table) -> list[ColumnElement[bool]]:
    """Exclude a span while it is being dropped: more is added to its lists."""
    if table is not erased_span:
        return []
    here, span = erased_span.c, partition_span.c
    dropping = select(span.name).where(
        span.state == "dropping", span.lo < here.hi, span.hi > here.lo
    )
    return [~dropping.exists()]


async def _find_erased(
    connection: AsyncConnection, model: int, times: Mapping[UUID, datetime]
) -> set[UUID]:
    query = select(tombstone.c.uid).where(among(tombstone, model, list(times)))
    erased = set((await connection.execute(query)).scalars())
    here = erased_span.c
    dropped = select(here.lo, here.hi).where(
        here.model == model, here.lo <= max(times.values()), here.hi > min(times.values())
    )
    for row in await connection.execute(dropped):
        in_span = {uid for uid, at in times.items() if row.lo <= at < row.hi}
        if unknown := in_span - erased:
            erased |= await _find_listed(connection, model, row.lo, unknown)
    return erased


async def _find_listed(
    connection: AsyncConnection, model: int, lo: datetime, uids: Collection[UUID]
) -> set[UUID]:
    unnested = func.unnest(literal(sorted(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    requested = select(unnested.column_valued("uid")).subquery()
    here, uid = erased_batch.c, requested.c.uid
    position = func.pg_catalog.position(here.uids, type_coerce(func.uuid_send(uid), BYTEA))
    query = select(uid).where(
        here.model == model, here.first >= uid_floor(lo), here.first <= uid, here.last >= uid
    )
    return set((await connection.execute(query.where(position > 0))).scalars())
