"""Removes a model: its registration, and what depends on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Integer, any_, func, literal, null, select, true
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.dictionary import lock_names
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_model,
    former_model,
    inference,
    label,
    metadata_key_delta,
    metadata_key_seen,
    model_key,
    model_label,
    policy,
    policy_sweep,
    policy_version,
    prediction,
    registration,
    saved_view,
)
from inference_store.inference.errors import Conflict

from . import removed_exports

_UNENDED: Final = "an erasure that has not ended"
# The registration comes last, because the others depend on it.
_OF_A_MODEL = (
    saved_view,
    policy_sweep,
    model_key,
    model_label,
    metadata_key_seen,
    metadata_key_delta,
    registration,
)


async def describe_removal(connection: AsyncConnection, model_id: str) -> Mapping[str, Any]:
    """Return the body of the ledger's entry. Raises Conflict if something of a model is left;
    NotFound.

    The row is locked first: ingesters take a share of that lock, so that no inference arrives
    between the check and the removal.
    """
    registered = await registrations.get(connection, model_id, lock=True)
    rest = await _find_rest(connection, registered.model)
    if rest == _UNENDED:
        raise Conflict(f"The model {model_id!r} is of an erasure that has not ended: wait for it.")
    if rest is not None:
        raise Conflict(f"The model {model_id!r} still has {rest}: delete them first.")
    return {"model_id": model_id, "revision": registered.revision}


async def _find_rest(connection: AsyncConnection, model: int) -> str | None:
    for table, what in ((inference, "inferences"), (erasing, "unfinished erasures")):
        first = select(table.c.model).where(table.c.model == model).limit(1)
        if (await connection.scalar(first)) is not None:
            return what
    # its erasure names it in the ledger, and would name a model that does not exist any more
    unended = select(erasure_model.c.model).join(erasure, erasure.c.id == erasure_model.c.erasure)
    unended = unended.where(erasure_model.c.model == model, erasure.c.finished_at.is_(None))
    return None if (await connection.scalar(unended.limit(1))) is None else _UNENDED


async def apply_removed(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Remove a registration and what depends on it. Repeatable.

    A replay may find a model in an older backup whose whole rest is being erased: it is removed
    with that. What has arrived since the entry was written belongs to a model that its event
    registers again: what its owner said about it is deleted, and so is the policy. A model that its
    owner has registered since stays as it is.
    """
    model_id = body["model_id"]
    for table in (policy, policy_version):  # otherwise a model of the same id would have its policy
        own = (table.c.level == "model", table.c.subject == model_id)
        await connection.execute(table.delete().where(*own))
    query = select(registration.c.model, registration.c.revision)
    query = query.where(registration.c.model_id == model_id).with_for_update()
    row = (await connection.execute(query)).first()
    if row is None:
        return
    model = row.model
    if row.revision > body.get("revision", row.revision):
        return
    if await _find_rest(connection, model) is not None:
        await _keep_model(connection, model)
    else:
        await _remove_model(connection, model, model_id)


async def remove_emptied(connection: AsyncConnection) -> int:
    """Remove the models of which nothing is left now; return how many.

    A model that has got a policy since stays.
    """
    here = registration.c
    own = select(policy.c.subject).where(
        policy.c.level == "model", policy.c.subject == here.model_id
    )
    query = select(here.model, here.model_id).where(
        here.registered_by == registrations.GOES, ~own.exists()
    )
    emptied = (await connection.execute(query.order_by(here.model).with_for_update())).all()
    empty = [
        model_row for model_row in emptied if await _find_rest(connection, model_row.model) is None
    ]
    for model_row in empty:
        await _remove_model(connection, model_row.model, model_row.model_id)
    return len(empty)


async def _keep_model(connection: AsyncConnection, model: int) -> None:
    await connection.execute(saved_view.delete().where(saved_view.c.model == model))
    marked = select(erasing.c.uid).where(
        erasing.c.model == inference.c.model,
        erasing.c.uid == inference.c.uid,
        erasing.c.scope == "inference",
    )
    arrived = select(inference.c.uid).where(inference.c.model == model, ~marked.exists()).limit(1)
    has_arrived = (await connection.scalar(arrived)) is not None
    # nobody knows whether the events that have arrived would set the rest
    values = {"class_labels": [], "output_mapping": null(), "registered_by": "event"}
    here = registration.c
    changed = registration.update().where(here.model == model)
    changed = changed.values(values if has_arrived else {"registered_by": registrations.GOES})
    await connection.execute(changed.values(revision=here.revision + 1, updated_at=func.now()))


async def _remove_model(connection: AsyncConnection, model: int, model_id: str) -> None:
    values = {"model_id": model_id, "model": model}
    await connection.execute(upsert(former_model).values(values).on_conflict_do_nothing())
    await removed_exports.cancel_exports(connection, model)
    for table in _OF_A_MODEL:
        await connection.execute(table.delete().where(table.c.model == model))


# Removes labels that no prediction of a model has: they repeat what was erased.
#
# `find_unused` reads without a lock. `remove_unused` reads again under two locks, in this order:
# that of the registration, of which each batch of an ingester holds a share, so that no prediction
# comes between the check and the removal; then the lock of whoever adds labels. After a crash the
# next call finds the labels. An integer is never used twice: an ingester that knows one of a
# removed label calls `Dictionary.has_labels` after it has its share of the first lock.


@dataclass(frozen=True, slots=True)
class Page:
    """The unused labels of a page; `last`: the last label that was read, None: the end."""

    unused: Sequence[int]
    last: int | None


async def find_unused(connection: AsyncConnection, model: int, *, after: int, limit: int) -> Page:
    """Return the next unused labels of a model, in order of their integers."""
    here = model_label.c
    query = select(here.label).where(here.model == model, here.label > after)
    labels = (await connection.execute(query.order_by(here.label).limit(limit))).scalars().all()
    unused = await _filter_unused(connection, model, labels)
    return Page(unused, labels[-1] if len(labels) == limit else None)


async def remove_unused(connection: AsyncConnection, model: int, labels: Sequence[int]) -> int:
    """Remove those of these labels that are still unused, and return how many. Repeatable."""
    locked = select(registration.c.model).where(registration.c.model == model).with_for_update()
    await connection.execute(locked)
    await lock_names(connection)
    unused = _array(await _filter_unused(connection, model, labels))
    here = model_label.c
    unused_labels = model_label.delete().where(here.model == model, here.label == any_(unused))
    removed = await connection.execute(unused_labels)
    others = select(here.label).where(here.label == label.c.label)
    await connection.execute(label.delete().where(label.c.label == any_(unused), ~others.exists()))
    return removed.rowcount


async def _filter_unused(
    connection: AsyncConnection, model: int, labels: Sequence[int]
) -> Sequence[int]:
    listed = func.unnest(_array(labels)).column_valued("wanted")
    here = prediction.c
    # in the index's order: each lookup reads its first entry, however many predictions there are
    first = select(here.label).where(here.model == model, here.label == listed)
    first_used = first.order_by(here.score).limit(1).lateral()
    used = await connection.execute(select(listed).join(first_used, true()))
    return sorted(set(labels) - set(used.scalars()))


def _array(labels: Sequence[int]) -> ColumnElement[Sequence[int]]:
    return literal(list(labels), ARRAY(Integer))
