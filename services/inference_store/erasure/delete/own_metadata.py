"""The metadata blob of an inference whose input is erased, where others point to it as well.

Our own producers' metadata blob holds the request, so an erasure of the input writes it again
without. What others point to does not change under them, for a hold may keep them: the inference
goes on with a blob of its own, and that one stays until the last of the others goes.

Order: point to the new key, and commit (`reserve`, with the claim) · write it · `repoint` with the
rows. After a crash the mark is there, and all is done again; whatever becomes of it, the new blob
goes with the inference. No edit comes between: it waits for the mark.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.claims import still_shared
from inference_store.erasure.mark.marks import Mark
from inference_store.index.identities import among, by_model
from inference_store.index.tables import blob_reference, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import edited_key

Moves: TypeAlias = Mapping[str, str | None]
"""The new key by the old one; None: the inference has left the old one before."""


async def reserve(connection: AsyncConnection, page: Sequence[Mark], bucket: str) -> Moves:
    """Point to a new metadata blob, of each mark whose own others point to. In the gate."""
    own = {
        mark.metadata: mark
        for mark in page
        if mark.scope == "input" and mark.metadata is not None and mark.owns(mark.metadata)
    }
    shared = await still_shared(connection, own) if own else set()
    there = await _metadata_of(connection, [own[key] for key in shared])
    moves: dict[str, str | None] = {}
    for key in sorted(shared):
        mark = own[key]
        new = str(StorageKey(bucket, edited_key(mark.model_id or "", mark.uid)))
        moves[key] = new if (mark.model, key) in there else None
    rows = [
        {"storage_key": new, "model": own[old].model, "uid": own[old].uid}
        for old, new in moves.items()
        if new is not None
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)
    return moves


async def repoint(connection: AsyncConnection, done: Sequence[Mark], moves: Moves) -> None:
    """Say on the rows where their metadata are now. Repeatable."""
    here = inference.c
    for mark in done:
        if mark.metadata is None or (new := moves.get(mark.metadata)) is None:
            continue
        where = (here.model == mark.model, here.uid == mark.uid)
        old = here.metadata_storage_key == mark.metadata
        await connection.execute(
            inference.update().where(*where, old).values(metadata_storage_key=new)
        )


async def _metadata_of(
    connection: AsyncConnection, page: Sequence[Mark]
) -> set[tuple[int, str | None]]:
    """The metadata blobs that the inferences have now."""
    found: set[tuple[int, str | None]] = set()
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        query = select(inference.c.metadata_storage_key).where(among(inference, model, uids))
        found |= {(model, key) for key in (await connection.execute(query)).scalars()}
    return found
