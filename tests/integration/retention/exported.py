"""Exports that lie in Postgres and in the object store, as a job would have left them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs.members import pack_uids
from inference_store.export.jobs.object_keys import (
    make_head_key,
    make_manifest_key,
    make_members_key,
    make_part_key,
)
from inference_store.index.tables import export_download, export_erased, export_job, export_part
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs

from .stored import Stored

PLANTED = b"planted-"


@dataclass(frozen=True)
class Exported:
    """An export whose every part names each of its members and a planted value of it."""

    id: UUID
    model: int
    engine: AsyncEngine
    blobs: Blobs

    def key(self, name: str) -> StorageKey:
        return StorageKey(self.blobs.buckets.default, name)

    def read(self, name: str) -> bytes:
        return self.blobs.get(self.key(name), limit=1_000_000)

    async def download(self, actor: str) -> None:
        values = {"export": self.id, "actor": actor, "parts": 1}
        async with self.engine.begin() as connection:
            await connection.execute(insert(export_download).values(values))

    async def set_state(self, state: str) -> None:
        async with self.engine.begin() as connection:
            job = export_job.update().where(export_job.c.id == self.id)
            await connection.execute(job.values(state=state))

    async def forget(self) -> None:
        """Postgres knows nothing of it any more."""
        async with self.engine.begin() as connection:
            for column in (export_part.c.export, export_download.c.export, export_job.c.id):
                await connection.execute(column.table.delete().where(column == self.id))

    async def job(self) -> Row[Any]:
        async with self.engine.connect() as connection:
            query = select(export_job).where(export_job.c.id == self.id)
            return (await connection.execute(query)).one()

    async def parts(self) -> list[Row[Any]]:
        async with self.engine.connect() as connection:
            query = select(export_part).where(export_part.c.export == self.id)
            return list(await connection.execute(query.order_by(export_part.c.number)))

    async def erased(self) -> list[Row[Any]]:
        async with self.engine.connect() as connection:
            query = select(export_erased).where(export_erased.c.export == self.id)
            return list(await connection.execute(query.order_by(export_erased.c.id)))

    def objects(self) -> set[str]:
        """The names of its objects in any version, without its prefix; of a part the number."""
        prefix = f"exports/{self.id}/"
        listed = self.blobs._minio.list_objects(
            self.blobs.buckets.default, prefix=prefix, recursive=True, include_version=True
        )
        names = {str(entry.object_name).removeprefix(prefix) for entry in listed}
        return {re.sub(r"^parts/0*(\d+)-.*", r"part \1", name) for name in names}


def plant(uid: UUID) -> bytes:
    """The value of an inference in a part."""
    return PLANTED + uid.hex.encode()


async def export_all(
    engine: AsyncEngine,
    blobs: Blobs,
    members: Sequence[Stored],
    *,
    size: int = 10,
    expires_in: timedelta = timedelta(days=7),
) -> Exported:
    """Write an export of these inferences, `size` in a part, and its rows."""
    exported = Exported(uuid4(), members[0].model, engine, blobs)
    uids = sorted(stored.uid for stored in members)
    lists = [uids[at : at + size] for at in range(0, len(uids), size)]
    now = datetime.now(UTC)
    expires_at = now + expires_in
    head: dict[str, Any] = {"export": str(exported.id), "model_id": "model", "format": "jsonl"}
    head |= {"requested_by": "key:exporter", "requested_at": now.isoformat()}
    head |= {"expires_at": expires_at.isoformat(), "include": [], "blobs": "none"}
    put(exported, make_head_key(exported.id), json.dumps(head).encode())
    rows = [write_part(exported, number, part) for number, part in enumerate(lists, 1)]
    put(
        exported,
        make_manifest_key(exported.id),
        json.dumps({"parts": [show_part(row) for row in rows]}).encode(),
    )
    job = {
        "id": exported.id,
        "model": exported.model,
        "format": "jsonl",
        "document": {
            **dict.fromkeys(("filter", "saved", "since")),
            "until": now.isoformat(),
            "include": [],
            "keys": [],
        },
        "state": "done",
        "requested_by": "key:exporter",
        "finished_at": now,
        "expires_at": expires_at,
        "members": len(uids),
        "lists": len(lists),
        "written": len(lists),
        "rows": len(uids),
        "bytes": sum(row["bytes"] for row in rows),
    }
    async with engine.begin() as connection:
        await connection.execute(insert(export_job).values(job))
        await connection.execute(insert(export_part), rows)
    return exported


def write_part(exported: Exported, number: int, uids: Sequence[UUID]) -> dict[str, Any]:
    """Write the objects of a part; return its row."""
    key = exported.key(make_part_key(exported.id, number, "jsonl"))
    data = b"\n".join(plant(uid) for uid in uids)
    exported.blobs.put(key, data, content_type="application/x-ndjson")
    put(exported, make_members_key(exported.id, number), pack_uids(uids))
    return {
        "export": exported.id,
        "number": number,
        "model": exported.model,
        "first": uids[0],
        "last": uids[-1],
        "uids": pack_uids(uids),
        "state": "written",
        "storage_key": str(key),
        "rows": len(uids),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).digest(),
        "written_at": datetime.now(UTC),
    }


def show_part(row: dict[str, Any]) -> dict[str, Any]:
    """A part as the manifest has it."""
    key = str(row["storage_key"]).split("/", 3)[3]
    more = {name: row[name] for name in ("number", "rows", "bytes")}
    return {"key": key, "sha256": row["sha256"].hex(), "gone": 0, **more}


def put(exported: Exported, name: str, data: bytes) -> None:
    exported.blobs.put(exported.key(name), data, content_type="application/octet-stream")
