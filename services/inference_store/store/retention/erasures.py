"""Erasures: one run of deletion each, from the mark to the last row.

pending → marking → deleting_objects → verifying → deleting_rows → deleted, or `failed`, with the
reason; a failed one is tried again with every run. A state says what is being done with the
present batch; `deleted` is said when no mark is left. (Certificates, and with them the state
`certified`, come with a later release.)
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import key_registry
from inference_store.store.access import EVERYTHING, Reach
from inference_store.store.tables import erasing, erasure, inference

from . import marks
from .identities import among
from .marks import Arrival
from .policies import Scope

Cause = Literal["policy", "request", "expired_arrival", "erased_again"]
State = Literal[
    "pending", "marking", "deleting_objects", "verifying", "deleting_rows", "deleted", "failed"
]
FINAL = ("deleted", "failed")
_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is erased, why, how far it is. `objects` were deleted and seen to be gone."""

    id: UUID
    model: int
    cause: Cause
    scope: Scope
    state: State
    run: UUID | None
    requested_at: datetime
    finished_at: datetime | None
    inferences: int
    objects: int
    error: str | None


async def request(
    connection: AsyncConnection,
    *,
    model: int,
    uids: Sequence[UUID],
    cause: Cause = "request",
    scope: Scope = "inference",
) -> Erasure:
    """Mark inferences: from the commit on no query shows them, and the service erases them.

    What is not stored, or marked already, is left out.
    """
    made = await create(connection, model=model, cause=cause, scope=scope)
    if uids:
        rows = select(inference).where(among(inference, model, uids)).order_by(inference.c.uid)
        # An edit of the same inference holds its row: it is waited for, and seen.
        locked = await connection.execute(rows.with_for_update())
        await marks.add(connection, made.id, [_arrival(row, scope) for row in locked])
    return made


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
        if await marks.add(connection, number, group):
            values = {"id": number, "model": model, "cause": cause, "scope": scope}
            await connection.execute(erasure.insert().values(**values, state="pending"))


async def create(
    connection: AsyncConnection,
    *,
    model: int,
    cause: Cause,
    scope: Scope,
    run: UUID | None = None,
    state: State = "pending",
) -> Erasure:
    """An erasure without marks yet."""
    values = {"id": uuid4(), "model": model, "cause": cause, "scope": scope}
    made = erasure.insert().values(**values, run=run, state=state).returning(erasure)
    return _erasure((await connection.execute(made)).one())


def _arrival(row: Any, scope: Scope) -> Arrival:
    keys = (row.data_storage_key, row.response_storage_key, row.metadata_storage_key)
    return row.model, row.uid, scope, *keys, row.sidecar_storage_key


async def find(
    connection: AsyncConnection, id: UUID, *, within: Reach = EVERYTHING
) -> Erasure | None:
    """One erasure, if its model is within reach."""
    query = select(erasure).where(erasure.c.id == id, within.of(erasure.c.model))
    row = (await connection.execute(query)).first()
    return None if row is None else _erasure(row)


async def listed(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: Reach = EVERYTHING,
) -> list[Erasure]:
    """The newest erasures first; `before`: (requested_at, id) of the last one of a page."""
    query = select(erasure).where(within.of(erasure.c.model))
    query = query.order_by(erasure.c.requested_at.desc(), erasure.c.id.desc())
    if model is not None:
        query = query.where(erasure.c.model == model)
    if before is not None:
        at, number = before
        query = query.where(
            (erasure.c.requested_at < at)
            | ((erasure.c.requested_at == at) & (erasure.c.id < number))
        )
    return [_erasure(row) for row in await connection.execute(query.limit(limit))]


async def unfinished(connection: AsyncConnection, *, failed: bool) -> list[Erasure]:
    """What was begun or asked for, oldest first; with `failed`, also what is to be tried again."""
    final = ("deleted",) if failed else FINAL
    query = select(erasure).where(erasure.c.state.not_in(final)).order_by(erasure.c.requested_at)
    return [_erasure(row) for row in await connection.execute(query)]


async def advance(connection: AsyncConnection, id: UUID, state: State) -> None:
    """Say what is being done now."""
    where = erasure.c.id == id
    await connection.execute(erasure.update().where(where).values(state=state))


async def count(connection: AsyncConnection, id: UUID, *, inferences: int, objects: int) -> None:
    """Add to what has been erased."""
    changed = erasure.update().where(erasure.c.id == id)
    await connection.execute(
        changed.values(
            inferences=erasure.c.inferences + inferences, objects=erasure.c.objects + objects
        )
    )


async def finish(connection: AsyncConnection, one: Erasure, *, error: str | None) -> State:
    """`deleted` when no mark is left, else `failed` with the reason.

    With the inferences go the examples that the key registry shows of their values. Once, in the
    transaction that says so: what crashed before is finished again. None can come after, for a
    delta is written by the transaction that stores or edits its inference: it was committed
    before the mark or before the claim's gate, and what was erased is not stored again.
    """
    if one.scope == "inference":
        await key_registry.forget_examples(connection, one.model)
    marked = select(erasing).where(erasing.c.erasure == one.id)
    left = await connection.scalar(select(marked.exists()))
    state: State = "failed" if left else "deleted"
    reason = (error or "something was left over")[:_ERROR_CHARACTERS] if left else None
    values = {"state": state, "error": reason, "finished_at": None if left else func.now()}
    await connection.execute(erasure.update().where(erasure.c.id == one.id).values(values))
    return state


def _erasure(row: Any) -> Erasure:
    return Erasure(**row._mapping)
