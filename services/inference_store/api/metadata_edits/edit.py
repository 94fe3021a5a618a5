"""Carries out edits of metadata.

Order: add keys to the dictionary · point to the blob, and commit (`reserve`) · lock the row · try
the rows and roll back, if a legal hold protects the inference (it must still protect it) · write
the blob · write the rows · commit. After a crash between blob and rows the inference is as before,
and its blob, or the new one that it points to, has the change already: the same edit continues from
there, and an erasure deletes both. While the row is locked nothing of it can be marked for erasure,
so no blob is written that an eraser has deleted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.index.dictionary import Dictionary
from inference_store.index.registrations import Registration
from inference_store.index.tables import inference
from inference_store.inference.errors import BlobMissing, BlobTooLarge, BlobUnreadable, Conflict
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.metadata import Entry, MetadataCaps, decode_entries, encode_entries
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from . import rows
from .blob_key import choose_key, is_reserved, leave_old, lock_row
from .change import Change
from .hold_check import require_still_held


@dataclass(frozen=True, slots=True)
class Editor:
    """The context of an edit, beside the connection."""

    blobs: Blobs
    dictionary: Dictionary
    caps: MetadataCaps


async def edit(
    connection: AsyncConnection,
    editor: Editor,
    registration: Registration,
    uid: UUID,
    change: Change,
    *,
    revision: int | None,
) -> int:
    """Change an inference's metadata, in its blob and in the index; return the new revision.

    Needs a `reserve` that is committed. Raises NotFound; PreconditionFailed if it has another
    revision than `revision`; Conflict if the metadata would exceed their caps or another edit was
    faster; HeldByHold if a legal hold would not protect it any more; ObjectStoreUnavailable.
    """
    model = registration.model
    # Before the row: no hold is placed between the check of holds here and the commit.
    await holds.block_placement(connection)
    row = await lock_row(connection, model, uid, revision)
    old = () if row.metadata is None else decode_entries(row.metadata)
    entries = change.entries(old)
    if len(entries) > editor.caps.keys:
        raise Conflict(f"An inference has at most {editor.caps.keys} metadata keys.")
    key = await choose_key(connection, editor.blobs.buckets.default, registration, row)
    if not await is_reserved(connection, row, key):
        raise Conflict("The metadata blob has just come to be shared: try again.")
    values = {"metadata": encode_entries(entries), "metadata_storage_key": str(key)}
    indexing = partial(_index_change, connection, editor, row, change, old, values)
    await require_still_held(connection, model, uid, indexing)
    await _write_blob(editor, row, key, change, old)
    await indexing()
    # Last, because it takes the fence, which is held for a moment only.
    await leave_old(connection, row, key)
    return int(row.revision) + 1


async def _index_change(  # noqa: PLR0917
    connection: AsyncConnection,
    editor: Editor,
    row: Any,
    change: Change,
    old: Sequence[Entry],
    values: Mapping[str, Any],
) -> None:
    """Bring the index to its state after the edit."""
    model, uid = row.model, row.uid
    await rows.remove_rows(connection, model, uid, change, old)
    await rows.add_rows(connection, editor.dictionary, model, uid, change, old)
    where = (inference.c.model == model, inference.c.uid == uid)
    changed = update(inference).where(*where).values(**values, revision=row.revision + 1)
    await connection.execute(changed)


async def _write_blob(editor: Editor, row: Any, key: StorageKey, change: Change, old: Any) -> None:
    blob = None
    if row.metadata_storage_key is not None:
        storage_key = parse_stored(row.metadata_storage_key)
        try:
            blob = await asyncio.to_thread(
                editor.blobs.get, storage_key, limit=editor.caps.blob_bytes
            )
        except BlobUnreadable as exc:  # archived: writing over it would lose what it holds
            raise Conflict(f"The metadata blob cannot be read, so not be changed: {exc}.") from None
        except BlobMissing:
            blob = None
        except BlobTooLarge as exc:
            raise Conflict(f"The metadata blob is too large to be changed: {exc}.") from None
    written = change.document(blob, old)
    if len(written) > editor.caps.blob_bytes:
        raise Conflict(f"The metadata blob would be over {editor.caps.blob_bytes} bytes.")
    failpoint("metadata_edit.blob.before")
    await asyncio.to_thread(editor.blobs.put, key, written, content_type="application/json")
    failpoint("metadata_edit.blob.after")
