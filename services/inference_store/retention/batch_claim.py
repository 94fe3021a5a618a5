"""Claims a batch of the next pending deletions that may be erased, in the fence."""

from collections.abc import Set

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import shared_metadata
from inference_store.erasure.fence import fence_exclusive
from inference_store.erasure.mark import claims
from inference_store.erasure.mark.held_deletions import spare_held
from inference_store.erasure.mark.pending_deletions import Position, list_pending
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import advance_erasure, begin_deleting
from inference_store.index.identities import Identity

from .batch import NOTHING, Batch


async def claim_batch(
    engine: AsyncEngine,
    erasure: Erasure,
    after: Position | None,
    *,
    limit: int,
    bucket: str,
    in_progress: Set[Identity],
) -> Batch:
    """Claim the next marks, and those of their objects that may be deleted.

    A hold that is placed before the fence is released keeps the inferences that it protects; a
    later one lists those claimed here. From the commit on the erasure cannot be cancelled.
    """
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=after, limit=limit)
        if not page:
            return NOTHING
        if erasure.cause == "erased_again":
            await claims.wait_for_edits(connection, page)
        # before the erasure's row is locked, for which the rows of the batch before wait
        await fence_exclusive(connection)
        if not await advance_erasure(connection, erasure.id, "marking"):
            return NOTHING
        in_ledger = erasure.cause in {"policy", "request"}
        unprotected = await spare_held(
            connection, page, since=erasure.since, in_ledger=in_ledger, in_progress=in_progress
        )
        spared, last = len(unprotected) < len(page), page[-1].position
        if not unprotected:
            return Batch((), frozenset(), last, spared)
        await begin_deleting(connection, erasure.id)
        await claims.record_claims(connection, erasure.id, unprotected)
        doomed = await claims.claim_objects(connection, unprotected)
        moves = await shared_metadata.reserve_keys(connection, unprotected, bucket)
        return Batch(unprotected, doomed, last, spared, moves)
