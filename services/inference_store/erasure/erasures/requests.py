"""Making erasures: with the marks of what arrived, or with a question that the service marks by."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import marks
from inference_store.erasure.mark.marks import Arrival
from inference_store.index.identities import among, by_model
from inference_store.index.tables import erasing, erasure, erasure_model

from .erasure import COLUMNS, Cause, Erasure, erasure_of

_OF_ARRIVALS: tuple[Cause, ...] = ("erased_again", "expired_arrival")


async def ask(
    connection: AsyncConnection,
    *,
    models: Sequence[int],
    asked: Mapping[str, Any],
    by: str,
    id: UUID | None = None,
    at: datetime | None = None,
) -> Erasure:
    """An erasure of what is asked for, which the service marks. Repeatable with the same `id`."""
    number = id or uuid4()
    values = {"id": number, "cause": "request", "scope": "inference", "state": "pending"}
    one = models[0] if len(models) == 1 else None
    made = insert(erasure).values(**values, model=one, asked=dict(asked), requested_by=by)
    if at is not None:
        made = made.values(requested_at=at)
    await connection.execute(made.on_conflict_do_nothing())
    rows = [{"erasure": number, "model": model} for model in models]
    if rows:
        await connection.execute(insert(erasure_model).on_conflict_do_nothing(), rows)
    found = await connection.execute(select(*COLUMNS).where(erasure.c.id == number))
    return erasure_of(found.one())


async def enqueue_arrivals(
    connection: AsyncConnection, arrivals: Iterable[Arrival], *, cause: Cause
) -> None:
    """Queue what arrived and may not stay: model, uid, scope and the keys of its objects.

    In the batch's own transaction. Each batch makes erasures of its own, one a model and scope:
    a row that every ingester adds to would be a row that all of them wait for.
    """
    groups: dict[tuple[int, str], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        groups[arrival[0], arrival[2]].append(arrival)
    for (model, scope), group in sorted(groups.items()):
        number = uuid4()
        # redelivered before it was worked off: its erasure is there
        left = await _unmarked(connection, group)
        if added := await marks.add(connection, number, left):
            values = {"id": number, "model": model, "cause": cause, "scope": scope}
            made = erasure.insert().values(**values, state="pending", marked=added)
            await connection.execute(made)


async def _unmarked(connection: AsyncConnection, arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Those that no arrival before has marked, in their scope, and that nobody has claimed since:
    what is claimed may have been deleted before it came again, and another erasure may be
    cancelled."""
    named = list(arrivals)
    known: set[tuple[int, UUID, str]] = set()
    for model, uids in by_model((arrival[0], arrival[1]) for arrival in named):
        query = select(erasing.c.model, erasing.c.uid, erasing.c.scope, erasing.c.erasure)
        query = query.where(among(erasing, model, uids), erasing.c.claimed_at.is_(None))
        rows = list(await connection.execute(query))
        # a statement of its own: marks are distributed, erasures are not
        ours = select(erasure.c.id).where(
            erasure.c.id.in_({row.erasure for row in rows}), erasure.c.cause.in_(_OF_ARRIVALS)
        )
        own = set((await connection.execute(ours)).scalars()) if rows else set()
        known |= {(row.model, row.uid, row.scope) for row in rows if row.erasure in own}
    return [arrival for arrival in named if arrival[:3] not in known]
