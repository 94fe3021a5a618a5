"""Marks a batch: describes it for the ledger, and then makes its pending deletions.

One transaction selects the batch (`selection`), the ledger has it, and `mark_batch` takes effect:
pending deletions, and the position of the erasure, in one transaction. An inference that begins
to match before that position does not belong to the erasure.

An inference that another erasure has marked, or that lies in a span which is being dropped,
belongs to this erasure as well: the other may be cancelled, fail or be held, and the span may
open again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, NewErasure, add_marked, resume_erasure
from inference_store.erasure.requests import (
    complete_cancellation,
    remove_pending_of,
    request_erasure,
    stop_erasure,
)
from inference_store.index import registrations
from inference_store.index.inferences import among
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_model,
    inference,
    registration,
    tombstone,
)
from inference_store.inference.errors import Conflict

from .held_deletions import record_held, split_held
from .orphan_objects import unmark_orphans
from .pending_deletions import COLUMNS as MARKED_COLUMNS
from .pending_deletions import KEYS, add_pending


async def describe_batch(
    connection: AsyncConnection,
    source_erasure: Erasure | NewErasure,
    model: int,
    uids: Sequence[UUID],
    *,
    position: UUID | None = None,
) -> dict[str, Any]:
    """Describe a batch for the ledger, as JSON: uids, and the keys of their objects.

    `position`: where the erasure goes on; None: no more inferences match. What holds protect is
    named apart, and is marked when they are released. Raises HoldUnreadable.
    """
    rows: list[Any] = []
    held: list[Any] = []
    if uids:
        columns = (inference.c.uid, *(inference.c[key] for key in KEYS))
        query = select(*columns).where(among(inference, model, uids))
        stored = await connection.execute(query.order_by(inference.c.uid))
        arrivals = [(model, uid, source_erasure.scope, *keys) for uid, *keys in stored]
        free, held = await split_held(connection, arrivals)
        rows = [(uid, *keys) for _, uid, _, *keys in free]
    up_to = None if position is None else str(position)
    return await describe_entry(connection, source_erasure, model, rows) | {
        "up_to": up_to,
        "held": held,
    }


async def describe_entry(
    connection: AsyncConnection,
    source_erasure: Erasure | NewErasure,
    model: int,
    rows: Sequence[Any],
) -> dict[str, Any]:
    """Describe uids for the ledger, stored or not, with the keys of their objects."""
    query = select(registration.c.model_id).where(registration.c.model == model)
    name = await connection.scalar(query)
    if name is None:
        raise Conflict("A model of the erasure is not registered any more.")
    return {
        "erasure": str(source_erasure.id),
        "cause": source_erasure.cause,
        "scope": source_erasure.scope,
        "requested_by": source_erasure.requested_by,
        "run": None if source_erasure.run is None else str(source_erasure.run),
        "decided_by": list(source_erasure.decided_by),
        "model_id": name,
        "marks": [[str(uid), *keys] for uid, *keys in rows],
    }


async def mark_batch(
    connection: AsyncConnection, batch: Mapping[str, Any], at: datetime, actor: str
) -> int:
    """Mark what a batch names, and return how many: from the commit on no query shows them.

    Repeatable.
    """
    number = UUID(batch["erasure"])
    model = await registrations.ensure(connection, batch["model_id"])
    await _ensure_erasure(connection, batch, model, at, actor)
    added = await _mark_stored(connection, number, batch["scope"], model, batch["marks"])
    await add_marked(connection, number, added)
    if added:
        await resume_erasure(connection, number)
    await record_held(connection, number, model, batch["scope"], batch.get("held", ()))
    if "up_to" in batch:
        await _record_position(connection, number, model, batch["up_to"], added)
    return added


async def _mark_stored(
    connection: AsyncConnection,
    number: UUID,
    scope: ErasureScope,
    model: int,
    entries: Sequence[Any],
) -> int:
    """Mark stored inferences with their keys of now, and others with the keys of the ledger."""
    uids = [UUID(uid) for uid, *_ in entries]
    if not uids:
        return 0
    here = inference.c
    keys = [here[key] for key in KEYS]
    stored = select(here.model, here.uid, literal(scope), literal(number), *keys)
    stored = stored.where(among(inference, model, uids)).order_by(here.uid)
    # An edit of the same inference locks its row: this waits for it, and sees it.
    inserted = insert(erasing).from_select(MARKED_COLUMNS, stored.with_for_update())
    added = (await connection.execute(inserted.on_conflict_do_nothing())).rowcount
    if added < len(uids):
        added += await _mark_absent(connection, number, scope, model, entries)
    return added


async def _mark_absent(
    connection: AsyncConnection,
    number: UUID,
    scope: ErasureScope,
    model: int,
    entries: Sequence[Any],
) -> int:
    """Mark what a replay does not find stored, nor erased: an event may bring it again."""
    keys = {UUID(uid): tuple(storage_keys) for uid, *storage_keys in entries}
    uids = sorted(keys)
    ours = erasing.c.erasure == number
    for table in (inference, tombstone, erasing):
        present = select(table.c.uid).where(among(table, model, uids))
        present = present.where(ours) if table is erasing else present
        for uid in (await connection.execute(present)).scalars():
            keys.pop(uid, None)
    arrivals = [(model, uid, scope, *storage_keys) for uid, storage_keys in sorted(keys.items())]
    return await add_pending(connection, number, arrivals)


async def _ensure_erasure(
    connection: AsyncConnection, batch: Mapping[str, Any], model: int, at: datetime, actor: str
) -> None:
    is_requested = batch["cause"] == "request"
    values = {
        "id": UUID(batch["erasure"]),
        "model": model,
        "cause": batch["cause"],
        "scope": batch["scope"],
        "run": None if batch["run"] is None else UUID(batch["run"]),
        "requested_at": at,
        "requested_by": batch["requested_by"] or (actor if is_requested else None),
        "state": "pending" if is_requested else "marking",
    }
    await connection.execute(insert(erasure).values(values).on_conflict_do_nothing())
    here = erasure.c
    for rule in batch.get("decided_by", ()):
        added = erasure.update().where(here.id == values["id"], ~here.decided_by.contains([rule]))
        await connection.execute(added.values(decided_by=here.decided_by.op("||")([rule])))


async def _record_position(
    connection: AsyncConnection, number: UUID, model: int, up_to: str | None, added: int
) -> None:
    here = erasure_model.c
    values: dict[Any, Any] = {"marked": here.marked + added}
    values |= {"marked_at": func.now()} if up_to is None else {"marked_to": UUID(up_to)}
    where = (here.erasure == number, here.model == model)
    await connection.execute(erasure_model.update().where(*where).values(values))


# The effects of the ledger's entries about erasures, the first time and when they are replayed.
#
# `erasure_requested` makes an erasure, which the service marks; `erasure_batch` marks what it
# names; `erasure_cancelled` removes all marks. Others say what holds kept (`held_deletions`) and
# that the rest was deleted (`apply_ended`). After a replay the service goes on where the entries
# end: objects that were deleted before are not there, and their rows are deleted again.

Body: TypeAlias = dict[str, Any]
_MARKS = 100_000


def describe_request(id: UUID, model_ids: list[str], criteria: Body) -> Body:
    """Return the body of an entry `erasure_requested`."""
    return {"erasure": str(id), "model_ids": model_ids, "asked": criteria}


async def apply_requested(
    connection: AsyncConnection, body: Body, at: datetime, actor: str
) -> Erasure:
    """Make the erasure."""
    models = [await registrations.ensure(connection, model_id) for model_id in body["model_ids"]]
    number = UUID(body["erasure"])
    return await request_erasure(
        connection, models=models, criteria=body["asked"], by=actor, id=number, at=at
    )


async def apply_cancelled(connection: AsyncConnection, body: Body, _: datetime, __: str) -> None:
    """Remove every mark, and set the state."""
    number = UUID(body["erasure"])
    await stop_erasure(connection, number)
    while await remove_pending_of(connection, number, limit=_MARKS):
        pass
    await unmark_orphans(connection, number)
    await complete_cancellation(connection, number)
