"""Claims a batch of the next pending deletions that may be erased, in the fence."""

from collections.abc import Set
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import shared_metadata
from inference_store.erasure.fence import fence_exclusive
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import claims
from inference_store.erasure.mark.ended_erasures import IN_LEDGER
from inference_store.erasure.mark.held_deletions import find_spared
from inference_store.erasure.mark.pending_deletions import Position, list_pending
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import advance_erasure, begin_deleting
from inference_store.index.identities import Identity

from .actor import ACTOR
from .batch import NOTHING, Batch

# before every position
_START: Position = (0, "", UUID(int=0))


async def claim_batch(
    engine: AsyncEngine,
    ledger: Ledger,
    erasure: Erasure,
    after: Position | None,
    *,
    limit: int,
    bucket: str,
    in_progress: Set[Identity],
) -> Batch:
    """Claim the next marks, and those of their objects that may be deleted.

    A hold that is placed before the fence is released keeps the inferences that it protects; a
    later one lists those claimed here. From the commit on the erasure cannot be cancelled. If holds
    protect some of the marks, only these are set apart, through the ledger, and the batch is empty:
    the next one begins at the same place.
    """
    batch, spared = await _claim(
        engine, erasure, after, limit=limit, bucket=bucket, in_progress=in_progress
    )
    if spared is None:
        return batch
    await ledger.write("erasure_spared", spared, actor=ACTOR)
    return Batch((), frozenset(), after or _START, has_spared=True)


async def _claim(
    engine: AsyncEngine,
    erasure: Erasure,
    after: Position | None,
    *,
    limit: int,
    bucket: str,
    in_progress: Set[Identity],
) -> tuple[Batch, dict[str, Any] | None]:
    """Claim a batch, or return what holds protect of it, and claim nothing."""
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=after, limit=limit)
        if not page:
            return NOTHING, None
        if erasure.cause == "erased_again":
            await claims.wait_for_edits(connection, page)
        # before the erasure's row is locked, for which the rows of the batch before wait
        await fence_exclusive(connection)
        if not await advance_erasure(connection, erasure.id, "marking"):
            return NOTHING, None
        spared = await find_spared(
            connection,
            page,
            since=erasure.since,
            in_ledger=erasure.cause in IN_LEDGER,
            in_progress=in_progress,
        )
        if spared is not None:
            return NOTHING, spared
        await begin_deleting(connection, erasure.id)
        await claims.record_claims(connection, erasure.id, page)
        doomed = await claims.claim_objects(connection, page)
        moves = await shared_metadata.reserve_keys(connection, page, bucket)
        return Batch(page, doomed, page[-1].position, moves=moves), None
