"""Records what an erasure leaves because of a hold, and goes on when the hold is released or
changed.

Holds are read twice: before a batch is marked (`split_held`, then `record_held` with the marks),
and after the fence, before marks are claimed (`find_spared`). The marks that holds protect by then
are removed by an entry of the ledger (`apply_spared`), so that queries show the inferences again,
and so that a replay knows which marks were left when their erasure ended (`apply_ended`).
`resume_released` marks again what was released.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    case,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import pending_deletions
from inference_store.erasure.holds import Hold, find_holds, is_in_force, list_in_force
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.object_claims import iterate_sharers
from inference_store.erasure.pending_deletions import COLUMNS, KEYS, Arrival, PendingDeletion
from inference_store.erasure.progress import STOPPED, Cause, resume_erasure
from inference_store.index import registrations
from inference_store.index.sidecars import Identity, among, by_model, marked_by
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_held,
    hold,
    inference,
)

_ALL: Final = 2**31 - 1
QUARANTINE_SCOPE: Final = "unsettled_event"
"""Scope of quarantined events: the number of their row is their uid, and they have no mark."""
_Row = Any
# uid, hold and its revision, and the storage keys, for JSON
HeldRow: TypeAlias = list[Any]


async def find_spared(
    connection: AsyncConnection,
    page: Sequence[PendingDeletion],
    *,
    since: datetime,
    in_ledger: bool,
    in_progress: Set[Identity] = frozenset(),
) -> dict[str, Any] | None:
    """Find what holds protect of the marks that an erasure is about to claim, as the ledger has it;
    None: nothing.

    Call it after the fence. `since`: when the erasure came into force; `in_ledger`: by an entry of
    the ledger. What it marked and is not stored is known by its keys alone: a younger hold of its
    model protects it. Others that share an object with these, and were claimed before the hold
    came, are spared here too: otherwise their object would be deleted before their turn. What a
    replay found erased is not asked about. `in_progress`: the inferences that are being erased now.
    Raises HoldUnreadable.
    """
    holds = await list_in_force(connection)
    if not holds:
        return None
    page = [mark for mark in page if not mark.was_erased]
    younger = [legal_hold for legal_hold in holds if legal_hold.in_force_at > since]
    held: dict[Identity, Hold] = {}
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        of_model = await find_holds(connection, holds, model, uids)
        of_model |= await _find_held_unstored(connection, younger, model, uids, in_ledger=in_ledger)
        held |= {(model, uid): legal_hold for uid, legal_hold in of_model.items()}
    free = [mark for mark in page if (mark.model, mark.uid) not in held]
    async for sharing in iterate_sharers(connection, free):
        for model, uids in by_model(sharing - in_progress):
            sharers = await find_holds(connection, holds, model, uids)
            held |= {(model, uid): legal_hold for uid, legal_hold in sharers.items()}
    return await _describe_spared(connection, held)


async def split_held(
    connection: AsyncConnection, arrivals: Sequence[Arrival]
) -> tuple[list[Arrival], list[HeldRow]]:
    """Split what an erasure is about to mark into what no hold protects, and the rest, to be
    recorded.

    `find_spared` finds a hold that comes later. Raises HoldUnreadable.
    """
    holds = (
        await list_in_force(connection, {arrival[0] for arrival in arrivals}) if arrivals else []
    )
    if not holds:
        return list(arrivals), []
    by_identity: dict[Identity, Hold] = {}
    for model, uids in by_model((arrival[0], arrival[1]) for arrival in arrivals):
        of_model = await find_holds(connection, holds, model, uids)
        by_identity |= {(model, uid): legal_hold for uid, legal_hold in of_model.items()}
    free, held = [], []
    for arrival in arrivals:
        model, uid, _, *keys = arrival
        if (legal_hold := by_identity.get((model, uid))) is None:
            free.append(arrival)
        else:
            held.append([str(uid), str(legal_hold.id), legal_hold.revision, *keys])
    return free, held


async def record_held(
    connection: AsyncConnection, number: UUID, model: int, scope: str, held: Sequence[HeldRow]
) -> None:
    """Record what `split_held` left of an erasure. Repeatable.

    Its hold may have been released meanwhile, and its inferences marked again: they are read again.
    """
    if not held:
        return
    who = {"erasure": number, "model": model, "scope": scope}
    rows = [
        who
        | {"uid": UUID(uid), "hold": UUID(id), "hold_revision": revision}
        | dict(zip(KEYS, keys, strict=True))
        for uid, id, revision, *keys in held
    ]
    await connection.execute(insert(erasure_held).on_conflict_do_nothing(), rows)
    holds = sorted({UUID(id) for _, id, *_ in held})
    again = hold.update().where(hold.c.id.in_(holds), hold.c.taken_up > 0)
    await connection.execute(again.values(taken_up=0))


async def resume_released(connection: AsyncConnection, *, limit: int) -> int:
    """Mark again what a hold protected that was released, has ended or was changed.

    Return 0 if nothing is left to read. An erasure by policy is not resumed: the policy may have
    changed, and its next run finds what is due. What another hold protects is spared again when it
    is claimed.
    """
    stale = await _find_stale(connection)
    if stale is None:
        return 0
    id, before = stale
    here = erasure_held.c
    query = select(erasure_held, erasure.c.cause, erasure.c.state)
    query = query.select_from(erasure_held.outerjoin(erasure, erasure.c.id == here.erasure))
    query = query.where(here.hold == id, here.hold_revision < before)
    # what is being waived is not resumed
    query = query.where(erasure.c.state.is_distinct_from("giving_up"))
    query = query.order_by(here.model, here.uid).limit(limit)
    rows = await _filter_waiting(connection, list(await connection.execute(query)))
    resumed = [
        row for row in rows if row.cause not in (None, "policy") and row.state not in STOPPED
    ]
    # a quarantined event has no mark: the erasure searches it again
    await _mark_again(connection, [row for row in resumed if row.scope != QUARANTINE_SCOPE])
    for row in rows:
        same = (here.erasure == row.erasure, here.model == row.model, here.uid == row.uid)
        await connection.execute(erasure_held.delete().where(*same, here.scope == row.scope))
    if len(rows) < limit:
        await connection.execute(hold.update().where(hold.c.id == id).values(taken_up=before))
    return max(1, len(rows))


async def _filter_waiting(connection: AsyncConnection, rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows without those that were waived since they were read.

    Their erasures, locked here until the end, go on.
    """
    ids = {row.erasure for row in rows}
    waiting = (erasure.c.id.in_(ids), erasure.c.state == "partly_held")
    await connection.execute(erasure.update().where(*waiting).values(state="pending"))
    query = select(erasure.c.id).where(erasure.c.id.in_(ids), erasure.c.state == "giving_up")
    given_up = set((await connection.execute(query)).scalars())
    return [row for row in rows if row.erasure not in given_up]


async def _find_stale(connection: AsyncConnection) -> tuple[UUID, int] | None:
    """Return a hold that may have released something since it was last read, and the revision
    before which everything is released.

    This runs in every turn, so it reads the holds alone: the inferences that they left are many.
    """
    before = case((is_in_force(), hold.c.revision), else_=_ALL)
    query = select(hold.c.id, before).where(hold.c.taken_up < before).limit(1)
    row = (await connection.execute(query)).first()
    return None if row is None else (row[0], row[1])


async def _mark_again(connection: AsyncConnection, rows: Sequence[_Row]) -> None:
    """Mark with the keys that a stored inference has now: it may have been edited meanwhile."""
    now: dict[Identity, tuple[str | None, ...]] = {}
    for model, uids in by_model((row.model, row.uid) for row in rows):
        columns = (inference.c.uid, *(inference.c[name] for name in KEYS))
        query = select(*columns).where(among(inference, model, uids)).order_by(inference.c.uid)
        locked = await connection.execute(query.with_for_update())
        now |= {(model, uid): tuple(keys) for uid, *keys in locked}
    for row in rows:
        known = tuple(getattr(row, name) for name in KEYS)
        # of replaced truth: of the inference itself nothing goes
        keys = known if row.scope == "truth" else now.get((row.model, row.uid), known)
        values = {"model": row.model, "uid": row.uid, "scope": row.scope, "erasure": row.erasure}
        values |= {**dict(zip(KEYS, keys, strict=True)), "claimed_at": row.claimed_at}
        await connection.execute(insert(erasing).values(values).on_conflict_do_nothing())


async def _find_held_unstored(
    connection: AsyncConnection,
    younger: Sequence[Hold],
    model: int,
    uids: Sequence[UUID],
    *,
    in_ledger: bool,
) -> dict[UUID, Hold]:
    """Return what is marked and not stored, with a hold that may protect it.

    What another erasure has erased meanwhile is deleted already. For arrivals this is checked
    before they are marked.
    """
    may_keep = [legal_hold for legal_hold in younger if legal_hold.model in (None, model)]
    if not may_keep:
        return {}
    query = select(inference.c.uid).where(among(inference, model, uids))
    stored = set((await connection.execute(query)).scalars())
    if in_ledger:
        stored |= await pending_deletions.list_erased(connection, model, uids)
    return {uid: may_keep[0] for uid in uids if uid not in stored}


async def _describe_spared(
    connection: AsyncConnection, held: Mapping[Identity, Hold]
) -> dict[str, Any] | None:
    """Describe every mark of what is held, whichever erasure made it, by erasure, model and hold.

    If another erasure had erased an inference before a restore, nothing of it is left to hold.
    """
    groups: dict[tuple[UUID, int, UUID, int], list[UUID]] = defaultdict(list)
    for model, uids in by_model(held):
        here = erasing.c
        query = select(here.uid, here.erasure, here.scope, here.erased_at)
        marks = list(await connection.execute(query.where(among(erasing, model, uids))))
        whole = (mark for mark in marks if mark.scope == "inference")
        gone = {mark.uid for mark in whole if mark.erased_at is not None}
        for mark in marks:
            if mark.erased_at is None and mark.uid not in gone:
                legal_hold = held[model, mark.uid]
                about = mark.erasure, model, legal_hold.id, legal_hold.revision
                groups[about].append(mark.uid)
    if not groups:
        return None
    names = await registrations.names(connection, {model for _, model, _, _ in groups})
    return {
        "spared": [
            {
                "erasure": str(number),
                "model_id": names[model],
                "hold": str(id),
                "revision": revision,
            }
            | {"uids": sorted({str(uid) for uid in uids})}
            for (number, model, id, revision), uids in sorted(groups.items())
        ]
    }


async def apply_spared(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> None:
    """Set apart what an entry `erasure_spared` names: queries show it again. Repeatable."""
    await fence_exclusive(connection)
    for group in body["spared"]:
        model = await registrations.ensure(connection, group["model_id"])
        number, uids = UUID(group["erasure"]), [UUID(uid) for uid in group["uids"]]
        by = (UUID(group["hold"]), group["revision"])
        await _set_apart(connection, number, model, uids, by=by)


async def _set_apart(
    connection: AsyncConnection, number: UUID, model: int, uids: list[UUID], *, by: tuple[UUID, int]
) -> None:
    """Move the marks of one erasure; `by`: the hold and its revision.

    A replay may find them set apart for an earlier hold, since released, whose marks had been set
    again.
    """
    held = erasure_held.update().where(
        among(erasure_held, model, uids), erasure_held.c.erasure == number
    )
    await connection.execute(held.values(hold=by[0], hold_revision=by[1]))
    marked = (marked_by(number, model, uids), erasing.c.erased_at.is_(None))
    names = ("erasure", "model", "uid", "scope", *KEYS, "claimed_at")
    columns = (*(erasing.c[name] for name in names), *map(literal, by))
    marks = select(*columns).where(*marked)
    inserted = insert(erasure_held).from_select([*names, "hold", "hold_revision"], marks)
    await connection.execute(inserted.on_conflict_do_nothing())
    await connection.execute(erasing.delete().where(*marked))


# Writes to the ledger that an erasure has ended, and tells a replay so.
#
# A restored backup has what an erasure had deleted, and a hold may have been placed on it since.
# Without this a replay would find the marks, then the hold, and show again what the bucket has
# lost.
#
# What a replay still finds marked at the end of an erasure was deleted: what holds kept is set
# apart, by entries of its own. That a hold was released and its marks set again is in no entry; but
# the last one names the holds that still keep something, and what is set apart for others was
# deleted too.

Body: TypeAlias = dict[str, Any]
IN_LEDGER: Final[Sequence[Cause]] = ("policy", "request")
"""Causes of erasures whose marks are in the ledger."""


async def has_marks(connection: AsyncConnection, number: UUID) -> bool:
    """Check whether something is left that an erasure has marked."""
    marks = select(erasing.c.uid).where(erasing.c.erasure == number)
    return bool(await connection.scalar(select(marks.exists())))


async def describe_ended(connection: AsyncConnection, number: UUID) -> Body:
    """Return the body of an entry `erasure_ended`: the holds, with their revisions, that still keep
    something of the erasure."""
    here = erasure_held.c
    query = select(here.hold, here.hold_revision).where(*_match_held(number)).distinct()
    rows = await connection.execute(query.order_by(here.hold, here.hold_revision))
    return {"erasure": str(number), "held": [[str(row[0]), row[1]] for row in rows]}


async def apply_ended(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, _: str
) -> None:
    """Note that what is left marked was erased, and so was what a hold let go. Repeatable.

    Live there is nothing of it.
    """
    number, here = UUID(body["erasure"]), erasure_held.c
    kept = [(UUID(id), revision) for id, revision in body["held"]]
    let_go = (*_match_held(number), tuple_(here.hold, here.hold_revision).not_in(kept))
    # a policy's next run, not the same erasure, takes what a hold lets go
    requested = select(erasure.c.id).where(erasure.c.id == number, erasure.c.cause != "policy")
    columns = [*COLUMNS, "erased_at"]
    rows = select(*(here[name] for name in COLUMNS), literal(at)).where(*let_go, requested.exists())
    inserted = insert(erasing).from_select(columns, rows)
    again = await connection.execute(inserted.on_conflict_do_nothing())
    await connection.execute(erasure_held.delete().where(*let_go))
    marked = (erasing.c.erasure == number, erasing.c.erased_at.is_(None))
    noted = await connection.execute(erasing.update().where(*marked).values(erased_at=at))
    if again.rowcount or noted.rowcount:
        await resume_erasure(connection, number)


def _match_held(number: UUID) -> Sequence[ColumnElement[bool]]:
    here = erasure_held.c
    return here.erasure == number, here.scope != QUARANTINE_SCOPE
