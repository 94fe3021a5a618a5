"""What an erasure leaves because of a hold, and remembers, so that it goes on where the hold is
released or changed.

Asked twice: before a batch is marked (`leave_out`, then `remember_left_out` with the marks), and
after the gate, before marks are claimed (`spare`, which takes their marks away, so that queries
show them again, and remembers them itself). `take_up` marks again what was let go.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import case, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import claims, marks, tombstones
from inference_store.erasure.mark.marks import Arrival, Mark
from inference_store.index.identities import Identity, among, by_model
from inference_store.index.tables import erasing, erasure, erasure_held, hold, inference

from .force import holding, in_force
from .hold import Hold, is_in_force

_KEYS: Final = tuple(name for name in marks.COLUMNS if name.endswith("_storage_key"))
_ALL: Final = 2**31 - 1
_STOPPED: Final = ("cancelling", "cancelled")
ASIDE: Final = ("dead_letter", "parked_event")
"""Scopes of what is set aside: of the row with this number as its uid, and without a mark."""
_Row = Any
# uid, hold and its revision, and the storage keys, for JSON
Held: TypeAlias = list[Any]


async def spare(
    connection: AsyncConnection,
    page: Sequence[Mark],
    *,
    since: datetime,
    in_ledger: bool,
    going: Set[Identity] = frozenset(),
) -> list[Mark]:
    """The marks that no hold keeps, of those that an erasure is about to claim. After the gate.

    `since`: when the erasure came into force; `in_ledger`: by an entry of the ledger. What it
    marked that is not stored is known by its keys alone: a hold of its model that is younger keeps
    it. Others that share an object with these, and were claimed before the hold came, are spared
    here as well: else their object would go before their turn came. `going`: what of them is being
    erased now. Raises HoldUnreadable.
    """
    found = await in_force(connection)
    if not found:
        return list(page)
    younger = [one for one in found if one.in_force_at > since]
    kept: dict[Identity, Hold] = {}
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        of_model = await holding(connection, found, model, uids)
        of_model |= await _not_stored(connection, younger, model, uids, in_ledger=in_ledger)
        kept |= {(model, uid): one for uid, one in of_model.items()}
    left = [mark for mark in page if (mark.model, mark.uid) not in kept]
    async for some in claims.sharing(connection, left):
        for model, uids in by_model(some - going):
            sharers = await holding(connection, found, model, uids)
            kept |= {(model, uid): one for uid, one in sharers.items()}
    await _set_apart(connection, kept)
    return left


async def leave_out(
    connection: AsyncConnection, arrivals: Sequence[Arrival]
) -> tuple[list[Arrival], list[Held]]:
    """Those that no hold keeps, of what an erasure is about to mark, and the others, to be
    remembered. A hold that comes later is found by `spare`. Raises HoldUnreadable.
    """
    found = await in_force(connection, {arrival[0] for arrival in arrivals}) if arrivals else []
    if not found:
        return list(arrivals), []
    kept: dict[Identity, Hold] = {}
    for model, uids in by_model((arrival[0], arrival[1]) for arrival in arrivals):
        of_model = await holding(connection, found, model, uids)
        kept |= {(model, uid): one for uid, one in of_model.items()}
    left, held = [], []
    for arrival in arrivals:
        model, uid, _, *keys = arrival
        if (one := kept.get((model, uid))) is None:
            left.append(arrival)
        else:
            held.append([str(uid), str(one.id), one.revision, *keys])
    return left, held


async def remember_left_out(
    connection: AsyncConnection, number: UUID, model: int, scope: str, held: Sequence[Held]
) -> None:
    """What `leave_out` kept of an erasure. Repeatable.

    Its hold may have been let go meanwhile, and what it kept taken up: it is looked at again.
    """
    if not held:
        return
    who = {"erasure": number, "model": model, "scope": scope}
    rows = [
        who
        | {"uid": UUID(uid), "hold": UUID(id), "hold_revision": revision}
        | dict(zip(_KEYS, keys, strict=True))
        for uid, id, revision, *keys in held
    ]
    await connection.execute(insert(erasure_held).on_conflict_do_nothing(), rows)
    holds = sorted({UUID(id) for _, id, *_ in held})
    again = hold.update().where(hold.c.id.in_(holds), hold.c.taken_up > 0)
    await connection.execute(again.values(taken_up=0))


async def take_up(connection: AsyncConnection, *, limit: int) -> int:
    """Mark again what a hold kept that has been released, has ended or has changed; 0: nothing is
    left to look at.

    A policy's erasure is not taken up: the policy may have changed, and its next run sees. What
    another hold keeps is spared again when it is claimed.
    """
    stale = await _stale(connection)
    if stale is None:
        return 0
    id, before = stale
    here = erasure_held.c
    query = select(erasure_held, erasure.c.cause, erasure.c.state)
    query = query.select_from(erasure_held.outerjoin(erasure, erasure.c.id == here.erasure))
    query = query.where(here.hold == id, here.hold_revision < before)
    # what is being given up is not taken up
    query = query.where(erasure.c.state.is_distinct_from("giving_up"))
    query = query.order_by(here.model, here.uid).limit(limit)
    rows = await _still_waiting(connection, list(await connection.execute(query)))
    await _mark_again(connection, [row for row in rows if _goes_on(row)])
    for row in rows:
        which = (here.erasure == row.erasure, here.model == row.model, here.uid == row.uid)
        await connection.execute(erasure_held.delete().where(*which, here.scope == row.scope))
    if len(rows) < limit:
        await connection.execute(hold.update().where(hold.c.id == id).values(taken_up=before))
    return max(1, len(rows))


async def _still_waiting(connection: AsyncConnection, rows: Sequence[_Row]) -> list[_Row]:
    """The rows without those that were given up since they were read: their erasures, locked here
    until the end, go on."""
    ids = {row.erasure for row in rows}
    waiting = (erasure.c.id.in_(ids), erasure.c.state == "partly_held")
    await connection.execute(erasure.update().where(*waiting).values(state="pending"))
    query = select(erasure.c.id).where(erasure.c.id.in_(ids), erasure.c.state == "giving_up")
    given_up = set((await connection.execute(query)).scalars())
    return [row for row in rows if row.erasure not in given_up]


async def _stale(connection: AsyncConnection) -> tuple[UUID, int] | None:
    """A hold that may have let go of something since it was last looked at, and the revision
    before which all is let go. Asked every turn, so of the holds alone: what they left is many."""
    before = case((is_in_force(), hold.c.revision), else_=_ALL)
    query = select(hold.c.id, before).where(hold.c.taken_up < before).limit(1)
    row = (await connection.execute(query)).first()
    return None if row is None else (row[0], row[1])


def _goes_on(row: _Row) -> bool:
    """Whether it is marked again. What is set aside has no mark: the erasure looks for it anew."""
    return (
        row.scope not in ASIDE and row.cause not in (None, "policy") and row.state not in _STOPPED
    )


async def _mark_again(connection: AsyncConnection, rows: Sequence[_Row]) -> None:
    """With the keys that it has now, if it is stored: it may have been edited meanwhile."""
    now: dict[Identity, tuple[str | None, ...]] = {}
    for model, uids in by_model((row.model, row.uid) for row in rows):
        columns = (inference.c.uid, *(inference.c[name] for name in _KEYS))
        query = select(*columns).where(among(inference, model, uids)).order_by(inference.c.uid)
        locked = await connection.execute(query.with_for_update())
        now |= {(model, uid): tuple(keys) for uid, *keys in locked}
    for row in rows:
        keys = now.get((row.model, row.uid), tuple(getattr(row, name) for name in _KEYS))
        values = {"model": row.model, "uid": row.uid, "scope": row.scope, "erasure": row.erasure}
        values |= {**dict(zip(_KEYS, keys, strict=True)), "claimed_at": row.claimed_at}
        await connection.execute(insert(erasing).values(values).on_conflict_do_nothing())


async def _not_stored(
    connection: AsyncConnection,
    younger: Sequence[Hold],
    model: int,
    uids: Sequence[UUID],
    *,
    in_ledger: bool,
) -> dict[UUID, Hold]:
    """What is marked and not stored, by a hold that may keep it: what another erasure has erased
    meanwhile is gone. Of arrivals that is said before they are marked."""
    may_keep = [one for one in younger if one.model in (None, model)]
    if not may_keep:
        return {}
    query = select(inference.c.uid).where(among(inference, model, uids))
    known = set((await connection.execute(query)).scalars())
    if in_ledger:
        known |= await tombstones.erased(connection, model, uids)
    return {uid: may_keep[0] for uid in uids if uid not in known}


async def _set_apart(connection: AsyncConnection, kept: Mapping[Identity, Hold]) -> None:
    """Every mark of what is held, whichever erasure made it."""
    groups: dict[tuple[int, UUID], list[UUID]] = defaultdict(list)
    holds = {one.id: one for one in kept.values()}
    for (model, uid), one in sorted(kept.items(), key=lambda each: each[0]):
        groups[model, one.id].append(uid)
    names = ("erasure", "model", "uid", "scope", *_KEYS, "claimed_at")
    for (model, id), uids in groups.items():
        by = (literal(id).label("hold"), literal(holds[id].revision).label("hold_revision"))
        marked = select(*(erasing.c[name] for name in names), *by)
        some = marked.where(among(erasing, model, uids))
        made = insert(erasure_held).from_select([*names, "hold", "hold_revision"], some)
        await connection.execute(made.on_conflict_do_nothing())
        await connection.execute(erasing.delete().where(among(erasing, model, uids)))


async def count(connection: AsyncConnection, number: UUID) -> int:
    """How many inferences, inputs and events set aside an erasure has left because of holds."""
    query = select(func.count()).select_from(erasure_held).where(erasure_held.c.erasure == number)
    return int(await connection.scalar(query) or 0)


async def by_hold(connection: AsyncConnection, number: UUID) -> dict[UUID, int]:
    """The same by the hold that keeps them."""
    here = erasure_held.c
    query = select(here.hold, func.count()).where(here.erasure == number).group_by(here.hold)
    return {row[0]: row[1] for row in await connection.execute(query.order_by(here.hold))}
