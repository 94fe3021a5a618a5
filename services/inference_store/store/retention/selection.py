"""What of a model has expired: marked in batches, in the order of its uids."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, literal, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.events import uid_floor
from inference_store.store.tables import erasing, inference

from . import marks
from .policies import Scope


async def mark_expired(
    connection: AsyncConnection,
    erasure: UUID,
    *,
    model: int,
    scope: Scope,
    lo: datetime,
    hi: datetime,
    limit: int,
) -> int:
    """Mark inferences received in [lo, hi); how many. 0: there are none left.

    Those that an edit holds are left out, for the next run.
    """
    query = _unmarked(model, scope, uid_floor(lo), uid_floor(hi), erasure)
    query = query.order_by(inference.c.uid).limit(limit).with_for_update(skip_locked=True)
    made = insert(erasing).from_select(marks.COLUMNS, query).on_conflict_do_nothing()
    return (await connection.execute(made)).rowcount


def _unmarked(model: int, scope: Scope, lo: UUID, hi: UUID, erasure: UUID) -> Select[Any]:
    here = inference.c
    mark = select(erasing.c.uid).where(
        erasing.c.model == model,
        erasing.c.uid == here.uid,
        or_(erasing.c.scope == "inference", erasing.c.scope == scope),
    )
    query = select(*_marks(scope, erasure)).where(
        here.model == model, here.uid >= lo, here.uid < hi, ~mark.exists()
    )
    if scope == "inference":
        return query
    # the condition of the index that has only what is still to be looked at
    return query.where(here.data_deleted_at.is_(None))


def _marks(scope: Scope, erasure: UUID) -> list[Any]:
    """The columns of `erasing`, in its order."""
    here = inference.c
    keys = [here.data_storage_key, here.response_storage_key, here.metadata_storage_key]
    return [
        *(here.model, here.uid, literal(scope), literal(erasure), *keys, here.sidecar_storage_key)
    ]
