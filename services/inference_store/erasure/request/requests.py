"""Makes an erasure by criteria, which the service marks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import COLUMNS, Erasure, read_erasure
from inference_store.index.tables import erasure, erasure_model


async def request_erasure(
    connection: AsyncConnection,
    *,
    models: Sequence[int],
    criteria: Mapping[str, Any],
    by: str,
    id: UUID | None = None,
    at: datetime | None = None,
) -> Erasure:
    """Make an erasure by criteria, and return it. Repeatable with the same `id`."""
    number = id or uuid4()
    values = {"id": number, "cause": "request", "scope": "inference", "state": "pending"}
    single_model = models[0] if len(models) == 1 else None
    inserted = insert(erasure).values(
        **values, model=single_model, asked=dict(criteria), requested_by=by
    )
    if at is not None:
        inserted = inserted.values(requested_at=at)
    await connection.execute(inserted.on_conflict_do_nothing())
    rows = [{"erasure": number, "model": model} for model in models]
    if rows:
        await connection.execute(insert(erasure_model).on_conflict_do_nothing(), rows)
    stored = await connection.execute(select(*COLUMNS).where(erasure.c.id == number))
    return read_erasure(stored.one())
