"""Places, changes and releases a hold: what the ledger's entries do to the tables.

Each takes the fence exclusively, so that it is ordered against every claim of an eraser: what
was claimed before is listed in the answer, and nothing that is claimed afterwards is held.
Before the fence it waits for edits of metadata that are under way (see `block_placement`). All
are repeatable.

`body`: id, name, reason, model_id (None: every model), filter (as it is saved), inference_ids,
until, revision; a release has id, reason and revision.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds.hold import find_holds, has_recorded_value
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.policies import watermarks
from inference_store.index import model_numbers
from inference_store.index.sidecars import by_model
from inference_store.index.tables import erasing, hold, hold_change
from inference_store.inference.errors import HoldUnreadable

from .hold import Hold, read_hold

MOST_CLAIMS: Final = 10_000
"""How many claims are checked: far more than are under way at once."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An inference that the hold protects from now on, and that an erasure had claimed before."""

    model: int
    uid: UUID
    scope: Literal["input", "response", "inference"]
    erasure: UUID
    claimed_at: datetime


_EDITS: Final = 7_302_021
_Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """The hold as it is now, and what had been claimed before. `has_more`: there were more claims
    than were checked."""

    hold: Hold
    claimed: list[Claim]
    has_more: bool


async def block_placement(connection: AsyncConnection) -> None:
    """Let no hold be placed until this transaction ends: an edit reads what is held, then writes.

    This is not the fence, which nobody holds during a call to S3, and an edit writes a blob.
    """
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_EDITS)))


async def apply_placed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placement:
    """Place a hold; it takes precedence over everything that is not claimed yet."""
    await _lock(connection)
    values = await _build_values(connection, body)
    values |= {"placed_by": actor, "placed_at": at, "revision": body["revision"]}
    values |= {"in_force_at": func.clock_timestamp()}
    await connection.execute(insert(hold).values(values).on_conflict_do_nothing())
    await _record_revision(connection, body, "placed", at, actor)
    return await _read_placed(connection, body)


async def apply_changed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placement:
    """Replace a hold by another one under the same id."""
    await _lock(connection)
    values = await _build_values(connection, body) | {"in_force_at": func.clock_timestamp()}
    await _update_hold(connection, body, values)
    await watermarks.delete_watermarks(connection)
    await _record_revision(connection, body, "changed", at, actor)
    return await _read_placed(connection, body)


async def apply_released(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Hold:
    """Release what a hold protected: pending erasures go on, and runs read everything again."""
    await _lock(connection)
    values = {"released_by": actor, "released_at": at, "release_reason": body["reason"]}
    await _update_hold(connection, body, values)
    await watermarks.delete_watermarks(connection)
    await _record_revision(connection, body, "released", at, actor)
    return await _read_current(connection, body)


async def find_claims(
    connection: AsyncConnection, hold: Hold, *, limit: int = MOST_CLAIMS
) -> tuple[list[Claim], bool]:
    """Return the claims that the hold came too late for, the oldest first, and whether there may be
    more than were checked.

    If the filter cannot be evaluated, return every claim that it may be about. Call it in the
    fence, as the hold is placed.
    """
    here = erasing.c
    query = select(here.model, here.uid, here.scope, here.erasure, here.claimed_at)
    query = query.where(here.claimed_at.is_not(None)).order_by(here.claimed_at, here.uid)
    if hold.model is not None:
        query = query.where(here.model == hold.model)
    claims = [Claim(*row) for row in await connection.execute(query.limit(limit + 1))]
    has_more = len(claims) > limit
    claims = claims[:limit]
    held: set[tuple[int, UUID]] = set()
    for model, uids in by_model((claim.model, claim.uid) for claim in claims):
        held |= {(model, uid) for uid in await _filter_held(connection, hold, model, uids)}
    return [claim for claim in claims if (claim.model, claim.uid) in held], has_more


async def _filter_held(
    connection: AsyncConnection, hold: Hold, model: int, uids: Sequence[UUID]
) -> Collection[UUID]:
    try:
        async with connection.begin_nested():
            return await find_holds(connection, [hold], model, uids)
    except HoldUnreadable:
        return uids


async def _lock(connection: AsyncConnection) -> None:
    await connection.execute(select(func.pg_advisory_xact_lock(_EDITS)))
    await fence_exclusive(connection)


async def _build_values(connection: AsyncConnection, body: _Document) -> dict[str, Any]:
    model_id, until = body["model_id"], body["until"]
    model = None if model_id is None else await model_numbers.reserve(connection, model_id)
    return {
        "id": UUID(body["id"]),
        "name": body["name"],
        "reason": body["reason"],
        "model": model,
        "filter": body["filter"],
        "inference_ids": body["inference_ids"],
        "until": None if until is None else datetime.fromisoformat(until),
    }


async def _update_hold(
    connection: AsyncConnection, body: _Document, values: dict[str, Any]
) -> None:
    """Update a hold, but only to a later revision: an entry that is applied again undoes
    nothing."""
    here = hold.c
    changed = hold.update().where(here.id == UUID(body["id"]), here.revision < body["revision"])
    changed = changed.values(values | {"revision": body["revision"], "taken_up": 0})
    await connection.execute(changed)


async def _record_revision(
    connection: AsyncConnection,
    body: _Document,
    change: Literal["placed", "changed", "released"],
    at: datetime,
    actor: str,
) -> None:
    row = {"hold": UUID(body["id"]), "revision": body["revision"], "change": change}
    row |= {"at": at, "actor": actor, "document": dict(body)}
    row["forget_when_over"] = change == "changed" and await has_recorded_value(connection, body)
    await connection.execute(insert(hold_change).values(row).on_conflict_do_nothing())


async def _read_placed(connection: AsyncConnection, body: _Document) -> Placement:
    current = await _read_current(connection, body)
    return Placement(current, *await find_claims(connection, current))


async def _read_current(connection: AsyncConnection, body: _Document) -> Hold:
    query = select(hold).where(hold.c.id == UUID(body["id"]))
    return read_hold((await connection.execute(query)).one())
