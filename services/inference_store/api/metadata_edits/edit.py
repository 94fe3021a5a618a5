"""Carries out edits of metadata.

Order: add keys to the dictionary · point to the blob, and commit (`reserve`) · lock the row · try
the rows and roll back, if a legal hold protects the inference (it must still protect it) · write
the blob · write the rows · commit. After a crash between blob and rows the inference is as before,
and its blob, or the new one that it points to, has the change already: the same edit continues from
there, and an erasure deletes both. While the row is locked nothing of it can be marked for erasure,
so no blob is written that an eraser has deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.holds import Hold
from inference_store.index import long_text
from inference_store.index.dictionary import Dictionary
from inference_store.index.registrations import Registration
from inference_store.index.tables import (
    SIDE_TABLES,
    inference,
    metadata_key,
    metadata_key_delta,
    metadata_presence,
)
from inference_store.inference.errors import (
    BlobMissing,
    BlobTooLarge,
    BlobUnreadable,
    Conflict,
    HeldByHold,
)
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.metadata import Entry, MetadataCaps, decode_entries, encode_entries
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from .blob_key import choose_key, is_reserved, leave_old, lock_row
from .change import Change


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
    await remove_rows(connection, model, uid, change, old)
    await add_rows(connection, editor.dictionary, model, uid, change, old)
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


async def require_still_held(
    connection: AsyncConnection, model: int, uid: UUID, edit: Callable[[], Awaitable[None]]
) -> None:
    """Raise HeldByHold if a hold protects the inference, and would not after the edit.

    The edit is tried on the index, and rolled back. Call it after `holds.block_placement`. Raises
    HoldUnreadable.
    """
    keeping = await _filter_holding(
        connection, await holds.list_in_force(connection, [model]), model, uid
    )
    if not keeping:
        return
    trial = await connection.begin_nested()
    await edit()
    after = await _filter_holding(connection, keeping, model, uid)
    await trial.rollback()
    ended = [hold for hold in keeping if hold not in after]
    if ended:
        raise HeldByHold(
            f"The legal hold {ended[0].name!r} ({ended[0].id}) keeps the inference, and would not"
            " any more: change or release the hold first."
        )


async def _filter_holding(
    connection: AsyncConnection, candidates: list[Hold], model: int, uid: UUID
) -> list[Hold]:
    return [hold for hold in candidates if await holds.find_holds(connection, [hold], model, [uid])]


_INDEXED = (*SIDE_TABLES.values(), metadata_presence)


async def remove_rows(
    connection: AsyncConnection, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> None:
    """Remove the rows of the keys that change."""
    for table in _INDEXED:
        names = select(metadata_key.c.key, metadata_key.c.name).join(
            table, table.c.key == metadata_key.c.key
        )
        rows = await connection.execute(names.where(table.c.model == model, table.c.uid == uid))
        removed = sorted({row.key for row in rows if change.removes(row.name, old)})
        if removed:
            here = (table.c.model == model, table.c.uid == uid, table.c.key.in_(removed))
            await connection.execute(delete(table).where(*here))


async def add_rows(  # noqa: PLR0917
    connection: AsyncConnection,
    dictionary: Dictionary,
    model: int,
    uid: UUID,
    change: Change,
    old: Sequence[Entry],
) -> None:
    """Add the rows of the change, and update the key registry.

    A name that belongs to a longer key, which does not change, keeps that key's row.
    """
    counted: set[tuple[Any, ...]] = set()
    for table, values, delta in _build_rows(dictionary, model, uid, change, old):
        await connection.execute(upsert(table).values(values).on_conflict_do_nothing())
        identity = (delta["key"], delta["type"], delta["flag"])
        if (
            identity in counted
        ):  # a text that does not fit its type has a row of presence beside its own
            continue
        counted.add(identity)
        await connection.execute(
            insert(metadata_key_delta).values(
                model=model, count=1, first_seen=func.now(), last_seen=func.now(), **delta
            )
        )


def _build_rows(
    dictionary: Dictionary, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> list[Any]:
    """Return (table, row, delta) for everything that the items are indexed as."""
    rows: list[Any] = []
    for leaf in change.metadata.leaves:
        key = dictionary.keys.number(model, leaf.name)
        if key is None or not change.removes(leaf.name, old):
            continue
        row = {"model": model, "key": key, "uid": uid, "value": leaf.value}
        if leaf.family == "string":
            row["value"], row["whole"] = long_text.encode(str(leaf.value))
        flag = leaf.flags[0] if leaf.flags else ""
        delta: dict[str, Any] = {"key": key, "type": leaf.type.value, "flag": flag}
        delta["examples"] = [str(leaf.value)[:120]]
        rows.append((SIDE_TABLES[leaf.family], row, delta))
    for presence in change.metadata.presences:
        key = dictionary.keys.number(model, presence.name)
        if key is None or not change.removes(presence.name, old):
            continue
        row = {"model": model, "key": key, "uid": uid, "is_null": presence.is_null}
        flag = presence.flags[0] if presence.flags else "null" if presence.is_null else "present"
        rows.append((metadata_presence, row, {"key": key, "type": presence.type, "flag": flag}))
    return rows
