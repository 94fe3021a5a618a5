"""What entries of the ledger about erasures do, the first time and when they are replayed.

`erasure_requested` makes an erasure, which the service marks; `erasure_batch` marks what it
names; `erasure_cancelled` takes all marks away. After a replay the service goes on where the
entries end: what had been deleted is found gone, and its rows go again.
"""

from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations

from . import marking, objects
from .cancelling import cancelled, stop, unmark
from .erasure import Erasure
from .requests import ask

Body: TypeAlias = dict[str, Any]
_MARKS = 100_000


def requested(id: UUID, model_ids: list[str], asked: Body) -> Body:
    """The body of an entry `erasure_requested`."""
    return {"erasure": str(id), "model_ids": model_ids, "asked": asked}


async def apply_requested(
    connection: AsyncConnection, body: Body, at: datetime, actor: str
) -> Erasure:
    """Make the erasure."""
    models = [await registrations.ensure(connection, each) for each in body["model_ids"]]
    number = UUID(body["erasure"])
    return await ask(connection, models=models, asked=body["asked"], by=actor, id=number, at=at)


async def apply_batch(connection: AsyncConnection, body: Body, at: datetime, actor: str) -> int:
    """Mark what the batch names; how many."""
    return await marking.apply(connection, body, at, actor)


async def apply_cancelled(connection: AsyncConnection, body: Body, _: datetime, __: str) -> None:
    """Take every mark away, and say so."""
    number = UUID(body["erasure"])
    await stop(connection, number)
    while await unmark(connection, number, limit=_MARKS):
        pass
    await objects.unmark(connection, number)
    await cancelled(connection, number)
