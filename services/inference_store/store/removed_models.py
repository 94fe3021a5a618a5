"""Removing a model: its registration, and what hangs on it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from . import registrations
from .errors import Conflict
from .tables import (
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
    retention_policy,
)

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


async def removable(connection: AsyncConnection, model_id: str) -> None:
    """Raise Conflict where something of a model is left; NotFound where there is none.

    The row is locked first: ingesters take a share of that lock, so that no inference comes in
    between the look and the removal.
    """
    left = await _left(connection, (await registrations.get(connection, model_id, lock=True)).model)
    if left == _ASKED:
        raise Conflict(f"The model {model_id!r} is of an erasure that has not ended: wait for it.")
    if left is not None:
        raise Conflict(f"The model {model_id!r} still has {left}: delete them first.")


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

    Of a model that has something left, as a replay may find it in an older backup, only the
    policy goes: it is erased still, and stays registered.
    """
    model_id = body["model_id"]
    for table in (policy, policy_version):  # or a model of the same id would have its policy
        own = (table.c.level == "model", table.c.subject == model_id)
        await connection.execute(table.delete().where(*own))
    query = select(registration.c.model).where(registration.c.model_id == model_id)
    model = await connection.scalar(query.with_for_update())
    if model is None:
        return
    await connection.execute(retention_policy.delete().where(retention_policy.c.model == model))
    if await _left(connection, model) is not None:
        return
    values = {"model_id": model_id, "model": model}
    await connection.execute(upsert(former_model).values(values).on_conflict_do_nothing())
    for table in _OF_A_MODEL:
        await connection.execute(table.delete().where(table.c.model == model))
