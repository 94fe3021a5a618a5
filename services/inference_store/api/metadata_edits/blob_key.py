"""Chooses where an edit writes the metadata blob, and checks who else uses that key.

A new blob's key is made of the inference's uid. Before it is written, the inference points to it by
a `blob_reference` that is committed: however the edit ends, the blob is deleted with the inference.
The fence orders that against an eraser's check (see erasure/mark/pending_deletions.py).
"""

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.locks import fence_shared
from inference_store.erasure.mark.pending_deletions import find_claimed, find_scopes
from inference_store.index import partitions
from inference_store.index.registrations import Registration
from inference_store.index.tables import blob_reference, erasing, inference
from inference_store.inference import layout
from inference_store.inference.errors import Conflict, NotFound, PreconditionFailed
from inference_store.inference.events import StorageKey, parse_stored, received_at_of


async def lock_row(connection: AsyncConnection, model: int, uid: UUID, revision: int | None) -> Any:
    """Lock the inference's row: nothing of it can be marked for erasure until the commit.

    Raises NotFound; Conflict while something of it is being erased; PreconditionFailed.
    """
    await partitions.share(connection, [received_at_of(uid)])
    here = inference.c
    query = select(inference).where(here.model == model, here.uid == uid).with_for_update()
    row = (await connection.execute(query)).first()
    # Checked after the lock: an erasure marks under the same one.
    scopes = await find_scopes(connection, model, uid)
    if row is None or "inference" in scopes:
        raise NotFound("The inference has just been deleted.")
    if scopes:
        # The eraser may be writing the same blob, without the request.
        raise Conflict("The inference's input is being deleted: try again in a moment.")
    if revision is not None and revision != row.revision:
        raise PreconditionFailed(f"The inference has revision {row.revision}, not {revision}.")
    return row


async def reserve(
    connection: AsyncConnection,
    bucket: str,
    registration: Registration,
    uid: UUID,
    *,
    revision: int | None,
) -> None:
    """Make the inference point to the key where its metadata blob will be written.

    It has a transaction of its own, which the caller commits before the edit's begins. Raises what
    `lock_row` does.
    """
    row = await lock_row(connection, registration.model, uid, revision)
    # The row first, here as in the edit; otherwise two edits and an eraser would deadlock.
    await fence_shared(connection)
    key = await choose_key(connection, bucket, registration, row)
    if str(key) == row.metadata_storage_key:
        return
    if await find_claimed(connection, [str(key)]):
        raise Conflict(f"{key} is being deleted for another inference: try again in a moment.")
    values = {"storage_key": str(key), "model": row.model, "uid": row.uid}
    await connection.execute(upsert(blob_reference).values(values).on_conflict_do_nothing())


async def choose_key(
    connection: AsyncConnection, bucket: str, registration: Registration, row: Any
) -> StorageKey:
    """Return where to write the metadata blob: its present key, or a new one if that is shared or
    missing.

    A new key that an edit reserved is used again, even if that edit failed.
    """
    new = StorageKey(bucket, layout.edited_key(registration.model_id, row.uid))
    if row.metadata_storage_key is None:
        return new
    key = parse_stored(row.metadata_storage_key)
    received_at = received_at_of(row.uid)
    if layout.belongs_to(key.key, registration.model_id, row.capture_id, received_at):
        return key
    if await is_reserved(connection, row, new):
        return new
    twice = row.metadata_storage_key in (row.data_storage_key, row.response_storage_key)
    return new if twice or await _has_others(connection, row, str(key)) else key


async def is_reserved(connection: AsyncConnection, row: Any, key: StorageKey) -> bool:
    """Return whether the inference points to a key, as its metadata blob or by `reserve`."""
    if str(key) == row.metadata_storage_key:
        return True
    query = select(blob_reference.c.uid).where(_match_ours(row, str(key)))
    return await connection.scalar(query) is not None


async def leave_old(connection: AsyncConnection, row: Any, key: StorageKey) -> None:
    """Stop pointing to the old blob, now that `key` is the metadata blob.

    If nobody else points to it, or only inferences that are being erased, whose eraser may have
    checked already, it stays ours and is deleted with the inference.
    """
    old = row.metadata_storage_key
    if old is None or old == str(key) or old in (row.data_storage_key, row.response_storage_key):
        return
    await fence_shared(connection)
    if await _has_others(connection, row, old):
        await connection.execute(delete(blob_reference).where(_match_ours(row, old)))


async def _has_others(connection: AsyncConnection, row: Any, key: str) -> bool:
    """Return whether an inference that stays points to a key too."""
    refers = blob_reference.c
    going = select(erasing.c.uid).where(
        erasing.c.model == refers.model, erasing.c.uid == refers.uid, erasing.c.scope == "inference"
    )
    query = select(refers.uid).where(
        refers.storage_key == key,
        (refers.model != row.model) | (refers.uid != row.uid),
        ~going.exists(),
    )
    return await connection.scalar(query.limit(1)) is not None


def _match_ours(row: Any, key: str) -> ColumnElement[bool]:
    refers = blob_reference.c
    return and_(refers.storage_key == key, refers.model == row.model, refers.uid == row.uid)
