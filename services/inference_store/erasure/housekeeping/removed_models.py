"""Removing a model: its registration, and what hangs on it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, null, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_model,
    former_model,
    inference,
    metadata_key_delta,
    metadata_key_seen,
    model_key,
    model_label,
    policy,
    policy_sweep,
    policy_version,
    registration,
)
from inference_store.inference.errors import Conflict

_ASKED: Final = "an erasure that has not ended"
# The registration last, for the others hang on it.
_OF_A_MODEL = (
    policy_sweep,
    model_key,
    model_label,
    metadata_key_seen,
    metadata_key_delta,
    registration,
)


async def removable(connection: AsyncConnection, model_id: str) -> Mapping[str, Any]:
    """What the ledger is to say. Raises Conflict where something of a model is left; NotFound.

    The row is locked first: ingesters take a share of that lock, so that no inference comes in
    between the look and the removal.
    """
    found = await registrations.get(connection, model_id, lock=True)
    left = await _left(connection, found.model)
    if left == _ASKED:
        raise Conflict(f"The model {model_id!r} is of an erasure that has not ended: wait for it.")
    if left is not None:
        raise Conflict(f"The model {model_id!r} still has {left}: delete them first.")
    return {"model_id": model_id, "revision": found.revision}


async def _left(connection: AsyncConnection, model: int) -> str | None:
    """What of a model is left, that hangs on its registration."""
    for table, what in ((inference, "inferences"), (erasing, "unfinished erasures")):
        some = select(table.c.model).where(table.c.model == model).limit(1)
        if (await connection.scalar(some)) is not None:
            return what
    # its erasure names it in the ledger, and would be written about a model that is no more
    asked = select(erasure_model.c.model).join(erasure, erasure.c.id == erasure_model.c.erasure)
    asked = asked.where(erasure_model.c.model == model, erasure.c.finished_at.is_(None))
    return None if (await connection.scalar(asked.limit(1))) is None else _ASKED


async def apply_removed(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Remove a registration and what hangs on it. Repeatable.

    One of which all that is left is being erased, as a replay may find it in an older backup, goes
    with that. What has come since the entry was put is of a model that is registered anew, by its
    event: what its owner has said of it is gone, and so is the policy. One that its owner has put
    since stays as he has put it.
    """
    model_id = body["model_id"]
    for table in (policy, policy_version):  # or a model of the same id would have its policy
        own = (table.c.level == "model", table.c.subject == model_id)
        await connection.execute(table.delete().where(*own))
    query = select(registration.c.model, registration.c.revision)
    query = query.where(registration.c.model_id == model_id).with_for_update()
    found = (await connection.execute(query)).first()
    if found is None:
        return
    model = found.model
    if found.revision > body.get("revision", found.revision):
        return
    if await _left(connection, model) is not None:
        await _stay(connection, model)
    else:
        await _remove(connection, model, model_id)


async def remove_emptied(connection: AsyncConnection) -> int:
    """Remove the models of which nothing is left now; how many. One that has got a policy since
    stays."""
    here = registration.c
    own = select(policy.c.subject).where(
        policy.c.level == "model", policy.c.subject == here.model_id
    )
    query = select(here.model, here.model_id).where(
        here.registered_by == registrations.GOES, ~own.exists()
    )
    found = (await connection.execute(query.order_by(here.model).with_for_update())).all()
    empty = [each for each in found if await _left(connection, each.model) is None]
    for each in empty:
        await _remove(connection, each.model, each.model_id)
    return len(empty)


async def _stay(connection: AsyncConnection, model: int) -> None:
    marked = select(erasing.c.uid).where(
        erasing.c.model == inference.c.model,
        erasing.c.uid == inference.c.uid,
        erasing.c.scope == "inference",
    )
    come = select(inference.c.uid).where(inference.c.model == model, ~marked.exists()).limit(1)
    anew = (await connection.scalar(come)) is not None
    # of the rest, what events say of their model, nobody knows whether these do
    values = {"class_labels": [], "output_mapping": null(), "registered_by": "event"}
    here = registration.c
    changed = registration.update().where(here.model == model)
    changed = changed.values(values if anew else {"registered_by": registrations.GOES})
    await connection.execute(changed.values(revision=here.revision + 1, updated_at=func.now()))


async def _remove(connection: AsyncConnection, model: int, model_id: str) -> None:
    values = {"model_id": model_id, "model": model}
    await connection.execute(upsert(former_model).values(values).on_conflict_do_nothing())
    for table in _OF_A_MODEL:
        await connection.execute(table.delete().where(table.c.model == model))
