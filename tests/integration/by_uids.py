"""Erasures for tests, made as the api makes that of one inference, but for the ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Begun, Erasure, marking
from inference_store.erasure.policies import Scope


async def request(
    connection: AsyncConnection, *, model: int, uids: Sequence[UUID], scope: Scope = "inference"
) -> Erasure:
    """Mark inferences: from the commit on no query shows them, and the service erases them."""
    begun = Begun(uuid4(), "request", scope)
    batch = await marking.body(connection, begun, model, marking.Found(uids, None))
    await marking.apply(connection, batch, datetime.now(UTC), "test")
    made = await erasures.find(connection, begun.id)
    assert made is not None
    return made
