"""Edits of metadata: items are added, replaced or removed.

Order: add keys to the dictionary · point to the blob, and commit (`reserve`) · lock the row · try
the rows and roll back, if a legal hold protects the inference (it must still protect it) · write
the blob · write the rows · commit. After a crash between blob and rows the inference is as before,
and its blob, or the new one that it points to, has the change already: the same edit continues from
there, and an erasure deletes both. While the row is locked nothing of it can be marked for erasure,
so no blob is written that an eraser has deleted.

A new blob's key is made of the inference's uid. Before it is written, the inference points to it by
a `blob_reference` that is committed: however the edit ends, the blob is deleted with the inference.
The fence orders that against an eraser's check (see erasure/pending_deletions.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, select, union_all, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import holds
from inference_store.erasure.holds import Hold
from inference_store.erasure.locks import fence_shared
from inference_store.erasure.pending_deletions import find_claimed, find_scopes, select_marks
from inference_store.index import key_registry, partitions, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.registrations import Registration
from inference_store.index.tables import (
    blob_reference,
    erasing,
    inference,
    metadata_key,
)
from inference_store.index.writing import add_metadata
from inference_store.inference import layout
from inference_store.inference.errors import (
    BlobMissing,
    BlobTooLarge,
    BlobUnreadable,
    Conflict,
    HeldByHold,
    NotFound,
    require_revision,
)
from inference_store.inference.events import StorageKey, parse_stored, received_at_of
from inference_store.inference.metadata import (
    Entry,
    MetadataCaps,
    decode_entries,
    encode_entries,
)
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.query import lookup
from inference_store.query.properties import PROPERTIES
from inference_store.query.read import Inference, read

from .access import Access, Asking
from .answer import Answer
from .dependencies import IfMatch
from .http import INFERENCE, InferenceId, ModelId
from .inference_models import EditedInference
from .inference_pages import format_inference
from .metadata_changes import Change, MetadataChange, check_change
from .routing import Router


@dataclass(frozen=True, slots=True)
class Edit:
    """How to change an inference that has these entries; None: it stays as it is. `names`: those
    that it may bring, and which of them `several`; `revision`: that it must have."""

    choose: Callable[[Sequence[Entry]], Change | None]
    names: Collection[str]
    several: Collection[str] = ()
    revision: int | None = None


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
    wanted: Edit,
) -> Change | None:
    """Change an inference's metadata, in its blob and in the index; return the change.

    Needs a `reserve` that is committed. Raises NotFound; PreconditionFailed if it has another
    revision than it must; Conflict if the metadata would exceed their caps or another edit was
    faster; HeldByHold if a legal hold would not protect it any more; ObjectStoreUnavailable.
    """
    model = registration.model
    # Before the row: no hold is placed between the check of holds here and the commit.
    await holds.block_placement(connection)
    row = await _lock_row(connection, model, uid, wanted.revision)
    old = () if row.metadata is None else decode_entries(row.metadata)
    change = wanted.choose(old)
    if change is None:
        return None
    change.refuse_lasting(old)
    entries = change.entries(old)
    if len(entries) > editor.caps.keys:
        detail = f"An inference has at most {editor.caps.keys} metadata keys: remove some."
        raise Conflict(detail, at="metadata")
    key = await _choose_key(connection, editor.blobs.buckets.default, registration, row)
    if not await _is_reserved(connection, row, key):
        raise Conflict("Another inference has just begun to share the metadata blob: try again.")
    values = {"metadata": encode_entries(entries), "metadata_storage_key": str(key)}
    indexing = partial(_index_change, connection, editor, row, change, old, values)
    await _require_still_held(connection, model, uid, indexing)
    await _write_blob(editor, row, key, change, old)
    await indexing()
    # Last, because it takes the fence, which is held for a moment only.
    await _leave_old(connection, registration, row, key)
    return change


async def _index_change(  # noqa: PLR0917
    connection: AsyncConnection,
    editor: Editor,
    row: Any,
    change: Change,
    old: Sequence[Entry],
    values: Mapping[str, Any],
) -> None:
    model, uid = row.model, row.uid
    await _remove_rows(connection, model, uid, change, old)
    # A name that belongs to a longer key, which does not change, keeps that key's row.
    added = replace(
        change.metadata,
        leaves=tuple(leaf for leaf in change.metadata.leaves if change.removes(leaf.name, old)),
        presences=tuple(p for p in change.metadata.presences if change.removes(p.name, old)),
    )
    await add_metadata(connection, model, uid, added, editor.dictionary)
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
            raise Conflict(
                f"The metadata blob cannot be read, so it cannot be changed: {exc}."
            ) from None
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


async def _require_still_held(
    connection: AsyncConnection, model: int, uid: UUID, edit: Callable[[], Awaitable[Any]]
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
            " match it any more: change or release the hold first."
        )


async def _filter_holding(
    connection: AsyncConnection, candidates: list[Hold], model: int, uid: UUID
) -> list[Hold]:
    return [hold for hold in candidates if await holds.find_holds(connection, [hold], model, [uid])]


async def _remove_rows(
    connection: AsyncConnection, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> None:
    """Delete the rows of what changes; retention removes keys that no row has any more."""
    tables = key_registry.TABLES.values()
    here = [select(t.c.key).where(t.c.model == model, t.c.uid == uid) for t in tables]
    names = select(metadata_key.c.key, metadata_key.c.name)
    rows = await connection.execute(names.where(metadata_key.c.key.in_(union_all(*here))))
    removed = sorted(row.key for row in rows if change.removes(row.name, old))
    if removed:
        await key_registry.delete_rows(connection, model, [uid], keys=removed)


async def _lock_row(
    connection: AsyncConnection, model: int, uid: UUID, revision: int | None
) -> Any:
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
    require_revision("The inference", row.revision, revision)
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
    `_lock_row` does.
    """
    row = await _lock_row(connection, registration.model, uid, revision)
    # The row first, here as in the edit; otherwise two edits and an eraser would deadlock.
    await fence_shared(connection)
    key = await _choose_key(connection, bucket, registration, row)
    if str(key) == row.metadata_storage_key:
        return
    if await find_claimed(connection, [str(key)]):
        raise Conflict(f"{key} is being deleted for another inference: try again in a moment.")
    values = {"storage_key": str(key), "model": row.model, "uid": row.uid}
    await connection.execute(upsert(blob_reference).values(values).on_conflict_do_nothing())


async def _choose_key(
    connection: AsyncConnection, bucket: str, registration: Registration, row: Any
) -> StorageKey:
    """Return where to write the metadata blob: its present key, or a new one if that is shared or
    missing, or a member of a segment, whose length stays.

    A new key that an edit reserved is used again, even if that edit failed.
    """
    new = StorageKey(bucket, layout.edited_key(registration.model_id, row.uid))
    if row.metadata_storage_key is None:
        return new
    key = parse_stored(row.metadata_storage_key)
    received_at = received_at_of(row.uid)
    is_member = layout.member_of(key.key) is not None
    is_own = layout.belongs_to(key.key, registration.model_id, row.capture_id, received_at)
    if is_own and not is_member:
        return key
    if await _is_reserved(connection, row, new):
        return new
    twice = row.metadata_storage_key in (row.data_storage_key, row.response_storage_key)
    return new if twice or is_member or await _has_others(connection, row, str(key)) else key


async def _is_reserved(connection: AsyncConnection, row: Any, key: StorageKey) -> bool:
    if str(key) == row.metadata_storage_key:
        return True
    query = select(blob_reference.c.uid).where(_match_ours(row, str(key)))
    return await connection.scalar(query) is not None


async def _leave_old(
    connection: AsyncConnection, registration: Registration, row: Any, key: StorageKey
) -> None:
    """Stop pointing to the old blob, now that `key` is the metadata blob.

    If nobody else points to it, or only inferences that are being erased, whose eraser may have
    checked already, it stays ours and is deleted with the inference.
    """
    old = row.metadata_storage_key
    if old is None or old == str(key) or old in (row.data_storage_key, row.response_storage_key):
        return
    await fence_shared(connection)
    own = (registration.model_id, row.capture_id, received_at_of(row.uid))
    if layout.belongs_to(parse_stored(old).key, *own):
        # a member of a segment: an erasure overwrites it, of the input too
        values = {"storage_key": old, "model": row.model, "uid": row.uid}
        await connection.execute(upsert(blob_reference).values(values).on_conflict_do_nothing())
        return
    if await _has_others(connection, row, old):
        await connection.execute(delete(blob_reference).where(_match_ours(row, old)))


async def _has_others(connection: AsyncConnection, row: Any, key: str) -> bool:
    refers = blob_reference.c
    going = select_marks(blob_reference).where(erasing.c.scope == "inference")
    query = select(refers.uid).where(
        refers.storage_key == key,
        (refers.model != row.model) | (refers.uid != row.uid),
        ~going.exists(),
    )
    return await connection.scalar(query.limit(1)) is not None


def _match_ours(row: Any, key: str) -> ColumnElement[bool]:
    refers = blob_reference.c
    return and_(refers.storage_key == key, refers.model == row.model, refers.uid == row.uid)


router = Router("inferences")
_TRIES = 3


@router.add(f"POST {INFERENCE}/metadata", Right.ANNOTATE, "Change metadata", 409)
async def change_metadata(
    model_id: ModelId,
    inference_id: InferenceId,
    body: MetadataChange,
    if_match: IfMatch,
    access: Asking,
) -> Answer[EditedInference]:
    """Add, replace or remove metadata items, in the index and in the metadata blob. If several
    inferences have the id, name one by `uid:`."""
    change = check_change(body.metadata, remove=body.remove, caps=find_caps(access))
    async with access.engine.begin() as connection:
        registration = await access.find_model(connection, model_id)
        model = registration.model
        uid, *others = await lookup.find_by_id(connection, model, inference_id, most=2)
    if others:
        raise Conflict(
            f"Several inferences have the id {inference_id!r}: name one by `uid:`, as in uid:{uid}."
        )
    wanted = Edit(lambda _: change, change.names, change.metadata.several, if_match)
    inference = await apply(access, registration, uid, wanted, make_dictionary(access))
    assert inference is not None, "each request changes the revision"
    shown: Any = format_inference(model_id, inference)
    shown["warnings"] = [
        f"{name!r} is the name of a property too. Filters and sorts must now name the key"
        f" `metadata.{name}`, and the property `inference.{name}`."
        for name in sorted(change.names & PROPERTIES.keys())
    ]
    return Answer(shown, revision=inference.row["revision"])


def find_caps(access: Access) -> MetadataCaps:
    """Return the caps of an inference's metadata."""
    to = access.settings
    return MetadataCaps(keys=to.max_keys_per_inference, blob_bytes=to.max_metadata_bytes)


def make_dictionary(access: Access) -> Dictionary:
    """Return a dictionary for edits, one after another."""
    return Dictionary(access.engine, most_keys=access.settings.max_keys_per_model)


async def apply(
    access: Access, registration: Registration, uid: UUID, wanted: Edit, dictionary: Dictionary
) -> Inference | None:
    """Change an inference's metadata, with the names before it; return the inference, or None if it
    stays as it was. `dictionary`: no other task may use it meanwhile. Raises what `edit` does.

    One transaction after another, never one inside another: so a request holds one connection at a
    time, and requests that wait for a second cannot empty the pool.
    """
    editor = Editor(access.blobs, dictionary, find_caps(access))
    engine, model, names = access.engine, registration.model, {registration.model: wanted.names}
    async with engine.begin() as connection:
        bucket = editor.blobs.buckets.default
        await reserve(connection, bucket, registration, uid, revision=wanted.revision)
    for _ in range(_TRIES):
        # After the reserve, which checks the revision: a refused edit leaves no names behind.
        await editor.dictionary.resolve(names, {}, wanted.several)
        async with engine.begin() as connection:
            registration = await access.find_model(connection, registration.model_id)
            await registrations.keep(connection, [model])
            if not await editor.dictionary.has_names(connection, names, {}):
                continue
            change = await edit(connection, editor, registration, uid, wanted)
            if change is None:
                return None
            [inference] = await read(connection, model, [uid], include=["metadata"])
            noted = {"keys": sorted(change.keys), "revision": inference.row["revision"]}
            await access.note(connection, Action.METADATA_CHANGED, registration, [uid], **noted)
        return inference
    raise Conflict("Its keys are being removed: try again in a moment.")
