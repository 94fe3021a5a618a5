"""Carrying out a change of metadata.

Order: keys in the dictionary · lock the row · write the blob · rows · commit. After a crash
between blob and rows the inference is as before, its blob has the change already, and the same
edit carries on from there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import delete, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import layout, long_text
from inference_store.store.blobs import Blobs
from inference_store.store.dictionary import Dictionary
from inference_store.store.errors import (
    BlobMissing,
    BlobTooLarge,
    Conflict,
    NotFound,
    PreconditionFailed,
)
from inference_store.store.events import StorageKey
from inference_store.store.events.storage_key import parse_stored
from inference_store.store.metadata import Entry, MetadataCaps, decode_entries, encode_entries
from inference_store.store.registrations import Registration
from inference_store.store.tables import (
    SIDE_TABLES,
    audit,
    blob_reference,
    erasing,
    inference,
    metadata_key,
    metadata_key_delta,
    metadata_presence,
)

from .change import Change

_INDEXED = (*SIDE_TABLES.values(), metadata_presence)


@dataclass(frozen=True, slots=True)
class Editor:
    """What an edit needs beside the connection."""

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
    """Change an inference's metadata, in its blob and in the index; the new revision.

    Raises NotFound, PreconditionFailed where it has another revision than `revision`, Conflict
    where the metadata would be over their caps, BlobsAway.
    """
    model = registration.model
    row = await _locked(connection, model, uid, revision)
    old = () if row.metadata is None else decode_entries(row.metadata)
    entries = change.entries(old)
    if len(entries) > editor.caps.keys:
        raise Conflict(f"An inference has at most {editor.caps.keys} metadata keys.")
    key = await _place(connection, editor.blobs, registration, row)
    await _write_blob(editor, row, key, change, old)
    await _remove_rows(connection, model, uid, change, old)
    await _add_rows(connection, editor.dictionary, model, uid, change)
    values = {"metadata": encode_entries(entries), "metadata_storage_key": str(key)}
    await connection.execute(
        update(inference)
        .where(inference.c.model == model, inference.c.uid == uid)
        .values(**values, revision=row.revision + 1)
    )
    await _refer(connection, row, key)
    detail = {"keys": sorted(change.keys), "revision": row.revision + 1}
    await connection.execute(
        insert(audit).values(
            actor="api", action="metadata_changed", model=model, uid=uid, detail=detail
        )
    )
    return int(row.revision) + 1


async def _locked(connection: AsyncConnection, model: int, uid: UUID, revision: int | None) -> Any:
    here = inference.c
    query = select(inference).where(here.model == model, here.uid == uid).with_for_update()
    row = (await connection.execute(query)).first()
    # Looked at after the lock: an erasure marks under the same one.
    marked = select(literal(1)).where(
        erasing.c.model == model, erasing.c.uid == uid, erasing.c.scope == "inference"
    )
    if row is None or await connection.scalar(marked) is not None:
        raise NotFound("The inference has just been deleted.")
    if revision is not None and revision != row.revision:
        raise PreconditionFailed(f"The inference has revision {row.revision}, not {revision}.")
    return row


async def _place(
    connection: AsyncConnection, blobs: Blobs, registration: Registration, row: Any
) -> StorageKey:
    """Where the metadata blob will be: where it is, or a new key if that is shared, or is none."""
    new = StorageKey(
        blobs.buckets.default, f"metadata/{quote(registration.model_id, safe='')}/{row.uid}"
    )
    if row.metadata_storage_key is None:
        return new
    key = parse_stored(row.metadata_storage_key)
    if layout.belongs_to(key.key, row.capture_id):
        return key
    refers = blob_reference.c
    others = select(refers.uid).where(
        refers.storage_key == str(key), (refers.model != row.model) | (refers.uid != row.uid)
    )
    twice = row.metadata_storage_key in (row.data_storage_key, row.response_storage_key)
    shared = twice or await connection.scalar(others.limit(1)) is not None
    return new if shared else key


async def _write_blob(editor: Editor, row: Any, key: StorageKey, change: Change, old: Any) -> None:
    blob = None
    if row.metadata_storage_key is not None:
        place = parse_stored(row.metadata_storage_key)
        try:
            blob = await asyncio.to_thread(editor.blobs.get, place, limit=editor.caps.blob_bytes)
        except BlobMissing:
            blob = None
        except BlobTooLarge as exc:
            raise Conflict(f"The metadata blob is too large to be changed: {exc}.") from None
    written = change.document(blob, old)
    if len(written) > editor.caps.blob_bytes:
        raise Conflict(f"The metadata blob would be over {editor.caps.blob_bytes} bytes.")
    await asyncio.to_thread(editor.blobs.put, key, written, content_type="application/json")


async def _remove_rows(
    connection: AsyncConnection, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> None:
    """Remove the side tables' rows of the keys that change."""
    for table in _INDEXED:
        names = select(metadata_key.c.key, metadata_key.c.name).join(
            table, table.c.key == metadata_key.c.key
        )
        rows = await connection.execute(names.where(table.c.model == model, table.c.uid == uid))
        gone = sorted({row.key for row in rows if change.removes(row.name, old)})
        if gone:
            here = (table.c.model == model, table.c.uid == uid, table.c.key.in_(gone))
            await connection.execute(delete(table).where(*here))


async def _add_rows(
    connection: AsyncConnection, dictionary: Dictionary, model: int, uid: UUID, change: Change
) -> None:
    """Add the rows that the change makes, and tell the key registry."""
    told: set[tuple[Any, ...]] = set()
    for table, values, delta in _rows(dictionary, model, uid, change):
        await connection.execute(upsert(table).values(values).on_conflict_do_nothing())
        what = (delta["key"], delta["type"], delta["flag"])
        if what in told:  # a text that is none of its type has a row of presence beside its own
            continue
        told.add(what)
        await connection.execute(
            insert(metadata_key_delta).values(
                model=model, count=1, first_seen=func.now(), last_seen=func.now(), **delta
            )
        )


def _rows(dictionary: Dictionary, model: int, uid: UUID, change: Change) -> list[Any]:
    """(table, row, delta) of everything the items are indexed as."""
    found: list[Any] = []
    for leaf in change.metadata.leaves:
        key = dictionary.keys.number(model, leaf.name)
        if key is None:
            continue
        row = {"model": model, "key": key, "uid": uid, "value": leaf.value}
        if leaf.family == "string":
            row["value"], row["whole"] = long_text.encode(str(leaf.value))
        flag = leaf.flags[0] if leaf.flags else ""
        delta: dict[str, Any] = {"key": key, "type": leaf.type.value, "flag": flag}
        delta["examples"] = [str(leaf.value)[:120]]
        found.append((SIDE_TABLES[leaf.family], row, delta))
    for presence in change.metadata.presences:
        key = dictionary.keys.number(model, presence.name)
        if key is None:
            continue
        row = {"model": model, "key": key, "uid": uid, "is_null": presence.is_null}
        flag = presence.flags[0] if presence.flags else "null" if presence.is_null else "present"
        found.append((metadata_presence, row, {"key": key, "type": presence.type, "flag": flag}))
    return found


async def _refer(connection: AsyncConnection, row: Any, key: StorageKey) -> None:
    """The blob's reference moves with it."""
    if layout.belongs_to(key.key, row.capture_id) or str(key) == row.metadata_storage_key:
        return
    refers = blob_reference.c
    others = (row.data_storage_key, row.response_storage_key)
    if row.metadata_storage_key is not None and row.metadata_storage_key not in others:
        await connection.execute(
            delete(blob_reference).where(
                refers.storage_key == row.metadata_storage_key,
                refers.model == row.model,
                refers.uid == row.uid,
            )
        )
    values = {"storage_key": str(key), "model": row.model, "uid": row.uid}
    await connection.execute(upsert(blob_reference).values(values).on_conflict_do_nothing())
