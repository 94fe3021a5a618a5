"""Makes erasures, with their pending deletions, of what arrived and may not stay."""

from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import Cause
from inference_store.index.inferences import among, by_model
from inference_store.index.tables import erasing, erasure

from .pending_deletions import Arrival, add_pending

_OF_ARRIVALS: tuple[Cause, ...] = ("erased_again", "expired_arrival")


async def enqueue_arrivals(
    connection: AsyncConnection, arrivals: Iterable[Arrival], *, cause: Cause
) -> None:
    """Queue what arrived and may not stay: model, uid, scope and the keys of its objects.

    Call it in the batch's own transaction. Each batch makes erasures of its own, one for each model
    and scope: all ingesters would wait for a row that each of them adds to.
    """
    groups: dict[tuple[int, str], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        groups[arrival[0], arrival[2]].append(arrival)
    for (model, scope), group in sorted(groups.items()):
        number = uuid4()
        # delivered again before it was erased: its erasure is there
        unmarked = await _list_unmarked(connection, group)
        if added := await add_pending(connection, number, unmarked):
            values = {"id": number, "model": model, "cause": cause, "scope": scope}
            inserted = erasure.insert().values(**values, state="pending", marked=added)
            await connection.execute(inserted)


async def _list_unmarked(connection: AsyncConnection, arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Return the arrivals that no earlier arrival has marked in their scope and that nobody has
    claimed.

    What is claimed may have been deleted before it came again, and another erasure may be
    cancelled.
    """
    listed = list(arrivals)
    marked: set[tuple[int, UUID, str]] = set()
    for model, uids in by_model((arrival[0], arrival[1]) for arrival in listed):
        query = select(erasing.c.model, erasing.c.uid, erasing.c.scope, erasing.c.erasure)
        query = query.where(among(erasing, model, uids), erasing.c.claimed_at.is_(None))
        rows = list(await connection.execute(query))
        # a statement of its own: marks are distributed, erasures are not
        ours = select(erasure.c.id).where(
            erasure.c.id.in_({row.erasure for row in rows}), erasure.c.cause.in_(_OF_ARRIVALS)
        )
        own = set((await connection.execute(ours)).scalars()) if rows else set()
        marked |= {(row.model, row.uid, row.scope) for row in rows if row.erasure in own}
    return [arrival for arrival in listed if arrival[:3] not in marked]
