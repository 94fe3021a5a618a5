"""Makes Postgres and the bucket agree about exports, after a restore from an older backup.

Exports that only the bucket has are imported with their lists, so that erasures find them: each in
one transaction, so that a crash leaves it unknown, and it is imported again. A model that the
backup does not know gets the integer with which it is registered later, so that no inference of it
can be stored, and erased, without its exports. Of an export that
Postgres knows, parts and lists that it does not name were written after the backup: they are
deleted, because no erasure would find them, and written again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs.downloads import RESTORED
from inference_store.export.jobs.members import UID_BYTES, unpack_uids
from inference_store.export.jobs.state_changes import recount
from inference_store.index import model_numbers
from inference_store.index.tables import export_job, export_part
from inference_store.inference.events import StorageKey

from .bucket_exports import BucketExports, Head, UnreadableExport

_UNDONE: Final = "Postgres was restored before it was done: request it again."
_log = structlog.get_logger()


async def restore_exports(
    engine: AsyncEngine, bucket: BucketExports, confirm: Callable[[], Awaitable[None]]
) -> None:
    """Go through the exports of the bucket. `confirm` raises if the service may not go on.

    Raises ObjectStoreUnavailable.
    """
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
        except UnreadableExport as error:
            about = {"export": str(export), "error": str(error)}
            _log.error("export cannot be imported", action="export_unreadable", **about)


async def _delete_unnamed(engine: AsyncEngine, bucket: BucketExports, export: UUID) -> None:
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


async def _import_export(engine: AsyncEngine, bucket: BucketExports, export: UUID) -> None:
    """Insert an export that only the bucket has. Raises UnreadableExport."""
    head = await asyncio.to_thread(bucket.read_head, export)
    manifest = await asyncio.to_thread(bucket.read_manifest, export)
    lists = await asyncio.to_thread(lambda: dict(bucket.list_members(export)))
    about = (bucket, export, manifest or {}, lists.keys())
    parts, faults = await asyncio.to_thread(_choose_parts, *about)
    async with engine.begin() as connection:
        model = await model_numbers.reserve(connection, head.model_id)
        job = _describe_job(export, model, head, is_done=manifest is not None)
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
    bucket: BucketExports,
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


def _describe_job(export: UUID, model: int, head: Head, *, is_done: bool) -> dict[str, Any]:
    """Return the row of a job; its filter is not in the bucket, and neither are its keys."""
    document = {
        **dict.fromkeys(("filter", "saved", "since", "keys")),
        "until": head.requested_at.isoformat(),
        "include": head.include,
        "blobs": head.blobs,
        RESTORED: True,
    }
    return {
        "id": export,
        "model": model,
        "format": head.format,
        "document": document,
        "state": "done" if is_done else "failed",
        "requested_by": head.requested_by,
        "requested_at": head.requested_at,
        "finished_at": head.requested_at,
        "expires_at": head.expires_at,
        "error": None if is_done else _UNDONE,
    }


def _describe_part(
    uids: bytes, key: StorageKey | None, manifest: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the columns of a part. An object that no manifest describes may be incomplete.

    Raises UnreadableExport if the list is damaged.
    """
    if not uids or len(uids) % UID_BYTES:
        raise UnreadableExport("a list of its members is not whole")
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
