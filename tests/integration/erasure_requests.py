"""Erasures for tests, requested as the api requests that of one inference, without the ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.batches import describe_batch, mark_batch
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, NewErasure, find_erasure


async def request_erasure(
    connection: AsyncConnection,
    *,
    model: int,
    uids: Sequence[UUID],
    scope: ErasureScope = "inference",
) -> Erasure:
    """Mark inferences: from the commit on no query shows them, and the service erases them."""
    new_erasure = NewErasure(uuid4(), "request", scope)
    batch = await describe_batch(connection, new_erasure, model, uids)
    await mark_batch(connection, batch, datetime.now(UTC), "test")
    erasure = await find_erasure(connection, new_erasure.id)
    assert erasure is not None
    return erasure
