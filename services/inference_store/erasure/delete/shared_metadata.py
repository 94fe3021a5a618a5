"""Separates the metadata blob of an inference whose input is erased from others that share it.

Our own producers' metadata blob holds the request, so an erasure of the input writes it again
without the request. If others point to it too, it does not change, because a hold may protect them:
the inference gets a blob of its own, and the shared one stays until the last of the others goes.

The order is: point to the new key, and commit (`reserve_keys`, with the claim) · write it ·
`repoint_rows` with the rows. After a crash the mark is there, and all is done again; in any case
the new blob goes with the inference. No edit comes between: it waits for the mark.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.claims import find_shared
from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.index.inferences import among, by_model
from inference_store.index.tables import blob_reference, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import edited_key

Moves: TypeAlias = Mapping[str, str | None]
"""The new key by the old one; None: the inference has left the old one before."""


async def reserve_keys(
    connection: AsyncConnection, page: Sequence[PendingDeletion], bucket: str
) -> Moves:
    """Point each mark to a new metadata blob if others point to its own one. Call it in the
    fence."""
    own = {
        mark.metadata: mark
        for mark in page
        if mark.scope == "input" and mark.metadata is not None and mark.owns(mark.metadata)
    }
    shared = await find_shared(connection, own) if own else set()
    current = await _find_metadata(connection, [own[key] for key in shared])
    moves: dict[str, str | None] = {}
    for key in sorted(shared):
        mark = own[key]
        new = str(StorageKey(bucket, edited_key(mark.model_id or "", mark.uid)))
        moves[key] = new if (mark.model, key) in current else None
    rows = [
        {"storage_key": new, "model": own[old].model, "uid": own[old].uid}
        for old, new in moves.items()
        if new is not None
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)
    return moves


async def repoint_rows(
    connection: AsyncConnection, done: Sequence[PendingDeletion], moves: Moves
) -> None:
    """Write the new keys of the metadata to the rows. Repeatable."""
    here = inference.c
    for mark in done:
        if mark.metadata is None or (new := moves.get(mark.metadata)) is None:
            continue
        where = (here.model == mark.model, here.uid == mark.uid)
        old = here.metadata_storage_key == mark.metadata
        await connection.execute(
            inference.update().where(*where, old).values(metadata_storage_key=new)
        )


async def _find_metadata(
    connection: AsyncConnection, page: Sequence[PendingDeletion]
) -> set[tuple[int, str | None]]:
    """Return the metadata blobs that the inferences have now."""
    keys: set[tuple[int, str | None]] = set()
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        query = select(inference.c.metadata_storage_key).where(among(inference, model, uids))
        keys |= {(model, key) for key in (await connection.execute(query)).scalars()}
    return keys
