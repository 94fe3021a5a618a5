"""Makes Postgres and the bucket agree about exports, after a restore from an older backup.

Exports that only the bucket has are imported with their lists, so that erasures find them: each in
one transaction, so that a crash leaves it unknown, and it is imported again. A model that the
backup does not know gets the integer with which it is registered later, so that no inference of it
can be stored, and erased, without its exports. Of an export that Postgres knows, parts and lists
that it does not name were written after the backup: they are deleted, because no erasure would find
them, and written again.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs import (
    MEMBERS,
    PARTS,
    RESTORED,
    UID_BYTES,
    make_head_key,
    make_manifest_key,
    make_prefix,
    recount,
    unpack_uids,
)
from inference_store.index import model_numbers
from inference_store.index.tables import export_erased, export_job, export_part
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import EXPORTS
from inference_store.objects import Blobs
from inference_store.objects.listing import Held

_NOT_WHOLE: Final = "Postgres was restored, and not every part is in the bucket: request it again."
_PAGE: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_NUMBER: Final = re.compile(r"(\d+)(-.*)?", re.ASCII)
_log = structlog.get_logger()


class _UnreadableExport(Exception):
    """The head of an export is missing, or no head, or does not fit what is stored."""


class _Bucket:
    """The exports as they lie in the bucket. All of it blocks; raises ObjectStoreUnavailable."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default

    def find_after(self, export: UUID | None) -> UUID | None:
        """Return the first export after another, in the order of their texts; None: there is
        none."""
        # the first character after the slash: after every object of that export
        after = EXPORTS if export is None else f"{EXPORTS}{export}0"
        while (name := self._blobs.first_after(self._bucket, EXPORTS, after)) is not None:
            text = name.removeprefix(EXPORTS).partition("/")[0]
            try:
                return UUID(text)
            except ValueError:  # nothing that the store wrote
                after = f"{EXPORTS}{text}0"
        return None

    def read_head(self, export: UUID) -> tuple[str, dict[str, Any]]:
        """Return an export's model, and the row of its job; its filter is not in the bucket, and
        neither are its keys. Raises _UnreadableExport."""
        try:
            head = json.loads(self._get(make_head_key(export), _MOST_BYTES))
            requested_at, expires_at = (
                datetime.fromisoformat(head[name]) for name in ("requested_at", "expires_at")
            )
            document = {
                **dict.fromkeys(("filter", "saved", "since", "keys")),
                "until": requested_at.isoformat(),
                "include": head["include"],
                "blobs": head["blobs"],
                RESTORED: True,
            }
            return head["model_id"], {
                "id": export,
                "format": head["format"],
                "document": document,
                "requested_by": head["requested_by"],
                "requested_at": requested_at,
                "finished_at": requested_at,
                "expires_at": expires_at,
            }
        except (BlobMissing, ValueError, KeyError, TypeError) as error:
            raise _UnreadableExport(str(error)) from error

    def read_manifest(self, export: UUID) -> dict[str, dict[str, Any]] | None:
        """Return the parts of a manifest by their keys; None: the export was not done."""
        try:
            manifest = json.loads(self._get(make_manifest_key(export), _MOST_BYTES))
            return {part["key"]: part for part in manifest["parts"]}
        except (BlobMissing, ValueError, KeyError, TypeError):
            return None

    def list_members(self, export: UUID) -> Iterator[tuple[int, StorageKey]]:
        """Yield the number and the key of each list."""
        return self._list_numbered(make_prefix(export) + MEMBERS)

    def list_parts(self, export: UUID) -> Iterator[tuple[int, StorageKey]]:
        """Yield the number and the key of each object of a part; a part may have several."""
        return self._list_numbered(make_prefix(export) + PARTS)

    def read_list(self, key: StorageKey) -> bytes:
        """Return a list of members."""
        return self._get(key.key, _MOST_BYTES)

    def delete(self, keys: list[StorageKey]) -> list[str]:
        """Delete objects in every version; return why some stay."""
        return [f"{fault.key}: {fault.message}" for fault in self._blobs.delete_objects(keys)]

    def _get(self, name: str, limit: int) -> bytes:
        return self._blobs.get(StorageKey(self._bucket, name), limit=limit)

    def _list_numbered(self, prefix: str) -> Iterator[tuple[int, StorageKey]]:
        after, more = "", True
        while more:
            page = self._blobs.page(self._bucket, prefix, after=after, limit=_PAGE)
            for listed in page:
                match = _NUMBER.fullmatch(listed.place.key.removeprefix(prefix))
                if match is not None:
                    yield int(match[1]), listed.place
            more = len(page) == _PAGE
            after = page[-1].place.key if page else after


async def restore_exports(
    engine: AsyncEngine, blobs: Blobs, confirm: Callable[[], Awaitable[None]]
) -> None:
    """Go through the exports of the bucket. `confirm` raises if the service may not go on.

    Raises ObjectStoreUnavailable.
    """
    bucket = _Bucket(blobs)
    export: UUID | None = None
    while (export := await asyncio.to_thread(bucket.find_after, export)) is not None:
        await confirm()
        async with engine.connect() as connection:
            here = export_job.c
            known = await connection.scalar(select(here.id).where(here.id == export))
        if known is not None:
            await _delete_unnamed(engine, bucket, export)
            continue
        try:
            await _import_export(engine, bucket, export)
        except _UnreadableExport as error:
            about = {"export": str(export), "error": str(error)}
            _log.error("export cannot be imported", action="export_unreadable", **about)


async def _delete_unnamed(engine: AsyncEngine, bucket: _Bucket, export: UUID) -> None:
    """Delete objects that a known export does not name."""
    here = export_part.c
    async with engine.connect() as connection:
        query = select(here.number, here.storage_key).where(here.export == export)
        numbers, names = set(), set()
        for number, name in await connection.execute(query):
            numbers.add(number)
            names.add(name)

    def delete() -> tuple[int, list[str]]:
        parts = [key for _, key in bucket.list_parts(export) if str(key) not in names]
        lists = [key for number, key in bucket.list_members(export) if number not in numbers]
        return len(parts) + len(lists), bucket.delete([*parts, *lists])

    count, faults = await asyncio.to_thread(delete)
    if count:
        about = {"export": str(export), "objects": count, "faults": faults[:10]}
        _log.warning("deleted what no part names", action="export_objects_deleted", **about)


async def _import_export(engine: AsyncEngine, bucket: _Bucket, export: UUID) -> None:
    """Insert an export that only the bucket has. Raises _UnreadableExport."""
    model_id, job = await asyncio.to_thread(bucket.read_head, export)
    manifest = await asyncio.to_thread(bucket.read_manifest, export)
    lists = await asyncio.to_thread(lambda: dict(bucket.list_members(export)))
    about = (bucket, export, manifest or {}, lists.keys())
    parts, faults = await asyncio.to_thread(_choose_parts, *about)
    async with engine.begin() as connection:
        model = await model_numbers.reserve(connection, model_id)
        job |= {"state": "done", "error": None, "model": model}
        if manifest is None:
            job |= {"state": "failed", "error": _NOT_WHOLE}
        await connection.execute(export_job.insert().values(job))
        members = 0
        for number, key in lists.items():
            uids = await asyncio.to_thread(bucket.read_list, key)
            part = _describe_part(uids, parts.get(number), manifest or {})
            row = {"export": export, "number": number, "model": model, **part}
            await connection.execute(export_part.insert().values(row))
            members += len(uids) // UID_BYTES + row["gone"]
        changed = export_job.update().where(export_job.c.id == export)
        await connection.execute(changed.values(members=members, lists=len(lists)))
        await recount(connection, export)
    logged = {"export": str(export), "lists": len(lists), "faults": faults[:10]}
    _log.warning("export imported from the bucket", action="export_imported", **logged)


def _choose_parts(
    bucket: _Bucket,
    export: UUID,
    manifest: dict[str, dict[str, Any]],
    numbers: Container[int],
) -> tuple[dict[int, StorageKey], list[str]]:
    """Return the object of each part that has a list, and delete others; why some stay. Blocks."""
    chosen: dict[int, StorageKey] = {}
    others: list[StorageKey] = []
    for number, key in bucket.list_parts(export):
        if number not in numbers or (number in chosen and key.key not in manifest):
            others.append(key)
        else:
            others += [chosen[number]] if number in chosen else []
            chosen[number] = key
    return chosen, bucket.delete(others)


def _describe_part(
    uids: bytes, key: StorageKey | None, manifest: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the columns of a part. An object that no manifest describes may be incomplete.

    Raises _UnreadableExport if the list is damaged.
    """
    if not uids or len(uids) % UID_BYTES:
        raise _UnreadableExport("a list of its members is not whole")
    unpacked = unpack_uids(uids)
    described = manifest.get(key.key) if key is not None else None
    row: dict[str, Any] = {
        "first": unpacked[0],
        "last": unpacked[-1],
        "uids": uids,
        "state": "listed" if key is None else "writing",
        "storage_key": None if key is None else str(key),
        "gone": 0,
    }
    if described is not None:
        row |= {name: described[name] for name in ("rows", "bytes", "gone")}
        row |= {"missing": described.get("missing", 0)}
        row |= {"state": "written", "sha256": bytes.fromhex(described["sha256"])}
    return row


# Reads what exports list, and which deleted parts are in the bucket: certificates are checked
# against that.

_LIST_BYTES: Final = 64 * 1024 * 1024
_KEYS: Final = 1000


class ExportRecheck:
    """Checks once. The objects of exports are collected while all objects of the buckets pass."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs
        self._lists: list[StorageKey] = []
        self._parts: list[StorageKey] = []

    def pass_objects(self, objects: Iterable[Held]) -> Iterator[Held]:
        """Yield the objects, and collect those of exports."""
        for held in objects:
            if held.key.bucket == self._blobs.buckets.default:
                _, _, name = held.key.key.removeprefix(EXPORTS).partition("/")
                if held.key.key.startswith(EXPORTS) and name.startswith((MEMBERS, PARTS)):
                    (self._lists if name.startswith(MEMBERS) else self._parts).append(held.key)
            yield held

    async def list_members(self) -> AsyncIterator[tuple[UUID, str]]:
        """Yield what is listed, in Postgres and then in the bucket, and a text that says where."""
        here, after = export_part.c, (UUID(int=0), -1)
        order = (here.export, here.number)
        query = select(*order, here.uids).order_by(*order).limit(1)
        async with self._engine.connect() as connection:
            while (
                row := (
                    await connection.execute(query.where(tuple_(*order) > tuple_(*after)))
                ).first()
            ) is not None:
                for uid in unpack_uids(bytes(row.uids)):
                    yield uid, f"{uid} is in list {row.number} of export {row.export} in Postgres"
                after = row.export, row.number
        for key in dict.fromkeys(self._lists):
            for uid in await asyncio.to_thread(self._read_list, key):
                yield uid, f"{uid} is in {key}"

    async def find_undeleted(self) -> AsyncIterator[str]:
        """Yield parts in the bucket that an erasure has deleted."""
        here = export_erased.c
        keys = [str(key) for key in dict.fromkeys(self._parts)]
        async with self._engine.connect() as connection:
            for at in range(0, len(keys), _KEYS):
                query = (
                    select(here.storage_key)
                    .distinct()
                    .where(
                        here.storage_key.in_(keys[at : at + _KEYS]), here.deleted_at.is_not(None)
                    )
                )
                for name in (await connection.execute(query)).scalars():
                    yield f"{name} is in the bucket, and an erasure deleted it"

    def _read_list(self, key: StorageKey) -> list[UUID]:
        """Read a list of the bucket; nothing if only older versions are there. Blocks."""
        try:
            return unpack_uids(self._blobs.get(key, limit=_LIST_BYTES))
        except BlobMissing:
            return []
