"""The effects of the ledger's entries about erasures, the first time and when they are replayed.

`erasure_requested` makes an erasure, which the service marks; `erasure_batch` marks what it names;
`erasure_cancelled` removes all marks. Others say what holds kept (`held_deletions`) and that the
rest was deleted (`ended_erasures`). After a replay the service goes on where the entries end:
objects that were deleted before are not there, and their rows are deleted again.
"""

from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.request.cancellation import (
    complete_cancellation,
    remove_pending_of,
    stop_erasure,
)
from inference_store.erasure.request.requests import request_erasure
from inference_store.index import registrations

from .batches import mark_batch
from .orphan_objects import unmark_orphans

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


async def apply_batch(connection: AsyncConnection, body: Body, at: datetime, actor: str) -> int:
    """Mark what the batch names, and return how many."""
    return await mark_batch(connection, body, at, actor)


async def apply_cancelled(connection: AsyncConnection, body: Body, _: datetime, __: str) -> None:
    """Remove every mark, and set the state."""
    number = UUID(body["erasure"])
    await stop_erasure(connection, number)
    while await remove_pending_of(connection, number, limit=_MARKS):
        pass
    await unmark_orphans(connection, number)
    await complete_cancellation(connection, number)
