"""Marks a batch: describes it for the ledger, and then makes its pending deletions.

One transaction selects the batch (`selection`), the ledger has it, and `mark_batch` takes effect:
pending deletions, and the position of the erasure, in one transaction. An inference that begins
to match before that position does not belong to the erasure.

An inference that another erasure has marked, or that lies in a span which is being dropped,
belongs to this erasure as well: the other may be cancelled, fail or be held, and the span may
open again.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Text, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import requests
from inference_store.erasure.held_deletions import record_held, split_held
from inference_store.erasure.pending_deletions import COLUMNS as MARKED_COLUMNS
from inference_store.erasure.pending_deletions import KEYS, add_pending
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import (
    Erasure,
    NewErasure,
    add_marked,
    redact_criteria,
    resume_erasure,
)
from inference_store.index import registrations
from inference_store.index.sidecars import among, among_keys
from inference_store.index.tables import (
    erasing,
    erasing_object,
    erasure,
    erasure_model,
    inference,
    registration,
    tombstone,
)
from inference_store.inference.errors import Conflict

Body: TypeAlias = dict[str, Any]


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
        raise Conflict("A model of the erasure is no longer registered.", at="model_ids")
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
    if "storage_keys" in batch:
        return await _name_objects(connection, number, batch["storage_keys"])
    model = await registrations.ensure(connection, batch["model_id"])
    await _ensure_erasure(connection, batch, model, at, actor)
    added = await _mark_stored(connection, number, batch["scope"], model, batch["marks"])
    await add_marked(connection, number, added)
    if added:
        await resume_erasure(connection, number)
    await record_held(connection, number, model, batch["scope"], batch.get("held", ()))
    if "up_to" in batch:
        here, up_to = erasure_model.c, batch["up_to"]
        values = {"marked_at": func.now()} if up_to is None else {"marked_to": UUID(up_to)}
        position = erasure_model.update().where(here.erasure == number, here.model == model)
        await connection.execute(position.values(values))
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
    if "asked" in batch:
        values["asked"] = batch["asked"]
    await connection.execute(insert(erasure).values(values).on_conflict_do_nothing())
    here = erasure.c
    for rule in batch.get("decided_by", ()):
        added = erasure.update().where(here.id == values["id"], ~here.decided_by.contains([rule]))
        await connection.execute(added.values(decided_by=here.decided_by.op("||")([rule])))


# Objects that no inference names: the orphans of a reconciliation's report.
#
# They are written to the ledger by batches of keys before anything is done with them, as marks are.
# `claimed_at`: from then on one may be gone, and an event that names it is not stored.

_HERE = erasing_object.c


async def _name_objects(connection: AsyncConnection, number: UUID, keys: Sequence[str]) -> int:
    """Name the objects, and return how many were not named before. Nothing is claimed yet."""
    storage_key = func.unnest(literal(keys, ARRAY(Text(collation="C"))))
    rows = select(storage_key, literal(number))
    inserted = insert(erasing_object).from_select(["storage_key", "erasure"], rows)
    added = (await connection.execute(inserted.on_conflict_do_nothing())).rowcount
    await add_marked(connection, number, added)
    return added


async def list_named_objects(
    connection: AsyncConnection, id: UUID, *, after: str, limit: int
) -> list[str]:
    """Return the next objects of an erasure, after a key."""
    query = select(_HERE.storage_key).where(_HERE.erasure == id, _HERE.storage_key > after)
    query = query.order_by(_HERE.storage_key).limit(limit)
    return list((await connection.execute(query)).scalars())


async def claim_objects(connection: AsyncConnection, keys: Collection[str]) -> None:
    """Claim objects: from the commit on they may be deleted. Call it in the fence."""
    unclaimed = erasing_object.update().where(
        among_keys(_HERE.storage_key, keys), _HERE.claimed_at.is_(None)
    )
    await connection.execute(unclaimed.values(claimed_at=func.now()))


async def remove_objects(connection: AsyncConnection, keys: Collection[str]) -> None:
    """Remove the names of objects: they are deleted, or they stay."""
    await connection.execute(erasing_object.delete().where(among_keys(_HERE.storage_key, keys)))


_MARKS = 100_000


def describe_request(id: UUID, model_ids: list[str], criteria: Body) -> Body:
    """Return the body of an entry `erasure_requested`; of orphans without a model."""
    return {"erasure": str(id), "model_ids": model_ids, "asked": criteria}


async def apply_requested(
    connection: AsyncConnection, body: Body, at: datetime, actor: str
) -> Erasure:
    """Make the erasure."""
    models = [await registrations.ensure(connection, model_id) for model_id in body["model_ids"]]
    number = UUID(body["erasure"])
    return await requests.request_erasure(
        connection, models=models, criteria=body["asked"], by=actor, id=number, at=at
    )


async def apply_cancelled(connection: AsyncConnection, body: Body, _: datetime, __: str) -> None:
    """Remove every mark, and set the state, whatever it is: a replay follows what was decided."""
    here, number = erasure.c, UUID(body["erasure"])
    changed = erasure.update().where(here.id == number, here.state != "cancelled")
    # first: it locks the row, which decides
    await connection.execute(changed.values(state="cancelling"))
    while await requests.remove_pending_of(connection, number, limit=_MARKS):
        pass
    await connection.execute(erasing_object.delete().where(_HERE.erasure == number))
    values = {"state": "cancelled", "finished_at": func.now(), "asked": redact_criteria()}
    await connection.execute(changed.values(values))
