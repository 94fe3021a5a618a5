"""Exports planted in Postgres and the bucket, requested as the api requests them, or over HTTP."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export import jobs
from inference_store.export.columns import BlobChoice
from inference_store.export.listing import Included, describe_question
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index.tables import export_download, export_erased, export_job, export_part
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.kill_chain import KillChain
from tests.polling import until
from tests.servers.minio import MinioUser
from tests.service_process import Service
from tests.transactions import execute, fetch

from .stored import NOW, Stored, Storing

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
        await execute(self.engine, insert(export_download).values(values))

    async def set_state(self, state: str) -> None:
        job = export_job.update().where(export_job.c.id == self.id)
        await execute(self.engine, job.values(state=state))

    async def job(self) -> Row[Any]:
        async with self.engine.connect() as connection:
            query = select(export_job).where(export_job.c.id == self.id)
            return (await connection.execute(query)).one()

    async def parts(self) -> list[Row[Any]]:
        query = select(export_part).where(export_part.c.export == self.id)
        return await fetch(self.engine, query.order_by(export_part.c.number))

    async def erased(self) -> list[Row[Any]]:
        query = select(export_erased).where(export_erased.c.export == self.id)
        return await fetch(self.engine, query.order_by(export_erased.c.id))

    def objects(self) -> set[str]:
        """The names of its objects in any version, without its prefix; of a part the number."""
        prefix = f"exports/{self.id}/"
        listed = self.blobs._minio.list_objects(
            self.blobs.buckets.default, prefix=prefix, recursive=True, include_version=True
        )
        names = {str(entry.object_name).removeprefix(prefix) for entry in listed}
        return {re.sub(r"^parts/0*(\d+)-.*", r"part \1", name) for name in names}


def plant(uid: UUID) -> bytes:
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
    rows = [write_part(exported, number, part) for number, part in enumerate(lists, 1)]
    manifest = exported.key(jobs.make_manifest_key(exported.id))
    exported.blobs.put(manifest, b"{}", content_type="application/json")
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
    key = exported.key(jobs.make_part_key(exported.id, number, "jsonl"))
    data = b"\n".join(plant(uid) for uid in uids)
    exported.blobs.put(key, data, content_type="application/x-ndjson")
    return {
        "export": exported.id,
        "number": number,
        "model": exported.model,
        "first": uids[0],
        "last": uids[-1],
        "uids": jobs.pack_uids(uids),
        "state": "written",
        "storage_key": str(key),
        "rows": len(uids),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).digest(),
        "written_at": datetime.now(UTC),
    }


def read_bucket(storing: Storing) -> bytes:
    """Every byte of every object, but for the store's own records."""
    client = storing.blobs._minio
    blobs = [client.get_object(storing.bucket, name) for name in storing.objects()]
    return b"".join(blob.read() for blob in blobs)


async def request_all(
    storing: Storing,
    model: int,
    format: str = "jsonl",
    *,
    include: Sequence[Included] = ("metadata", "predictions"),
    blobs: BlobChoice = "none",
) -> UUID:
    id = uuid4()
    async with storing.engine.begin() as connection:
        document = await describe_question(
            connection, model, None, text=None, since=None, until=NOW, include=include, blobs=blobs
        )
        await jobs.request_export(
            connection,
            id,
            model=model,
            format=format,
            document=document,
            requested_by="test",
            expires_at=NOW + timedelta(days=1),
        )
    return id


async def read_job(storing: Storing, id: UUID) -> jobs.ExportJob:
    job = await storing.transact(jobs.find_job, id)
    assert job is not None
    return job


async def wait_for(storing: Storing, id: UUID, state: jobs.State) -> jobs.ExportJob:
    async def ask() -> jobs.ExportJob:
        return await read_job(storing, id)

    return await until(ask, lambda job: job.state == state)


def find_objects(storing: Storing, prefix: str) -> list[str]:
    return [
        item.place.key for item in storing.blobs.page(storing.bucket, prefix, after="", limit=99)
    ]


def sign_in_as(user: MinioUser, settings: RetentionSettings) -> RetentionSettings:
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    return RetentionSettings.model_validate(settings.model_dump() | keys)


async def run_until_killed(
    kills: KillChain, kill: str, environment: Mapping[str, str], folder: Path
) -> Service:
    """Run a retention process until a failpoint kills it, and return what it was."""
    failing = Service("retention", {**environment, "INFERENCE_STORE_FAILPOINT": kill}, folder)
    await kills.wait_until_killed(failing)
    return failing


@asynccontextmanager
async def run_service(environment: Mapping[str, str], folder: Path) -> AsyncIterator[Service]:
    service = Service("retention", dict(environment), folder)
    try:
        yield service
    finally:
        await asyncio.to_thread(service.stop)


Shown = dict[str, Any]


@dataclass(frozen=True)
class Exporting:
    """A caller of the api."""

    client: httpx.AsyncClient

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return what the api answers. Raises AssertionError if it refuses."""
        answer = await self.client.request(method, f"/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def request_all(self) -> dict[str, str]:
        """Request an export of all in each format, with copies of blobs in those that can have
        them; return the id of each by its format."""
        path = "/models/model/exports"
        exports: dict[str, str] = {}
        for name, format in PART_FORMATS.items():
            body = {"format": name, "blobs": "copy" if format.copied else "links"}
            exports[name] = (await self.call("POST", path, body))["id"]
        return exports

    async def follow(self, exports: Mapping[str, str]) -> list[Shown]:
        return [await self.call("GET", f"/exports/{export}") for export in exports.values()]

    async def restart(self, exports: Mapping[str, str]) -> dict[str, str]:
        """Start exports again; return the id of each new one by its format."""
        return {
            format: (await self.call("POST", f"/exports/{export}/restart"))["id"]
            for format, export in exports.items()
        }

    async def wait_until_ended(self, exports: Mapping[str, str], seconds: float = 180) -> None:
        """Wait until nothing is left to write."""

        def have_ended(shown: list[Shown]) -> bool:
            return {export["state"] for export in shown} <= {"done", "stale"}

        await until(lambda: self.follow(exports), have_ended, seconds=seconds)

    async def list_parts(self, export: str) -> list[Shown]:
        """Return the parts of an export. Who asks counts as having downloaded them."""
        parts = (await self.call("GET", f"/exports/{export}/parts?limit=1000"))["items"]
        return [part for part in parts if part["state"] != "removed"]

    async def erase(self, inference_ids: list[str]) -> str:
        path, body = "/models/model/erasures", {"inference_ids": inference_ids}
        return str((await self.call("POST", path, body))["id"])

    async def wait_until_certified(self, erasure: str, seconds: float = 180) -> Shown:
        """Wait until an erasure has its certificate, and return the certificate's document."""

        async def list_certificates() -> list[Shown]:
            return list((await self.call("GET", f"/certificates?erasure={erasure}"))["items"])

        [item] = await until(list_certificates, bool, seconds=seconds)
        return dict((await self.call("GET", f"/certificates/{item['number']}"))["document"])

    async def list_erased(self, export: str) -> list[Shown]:
        page = await self.call("GET", f"/exports/{export}/erased?limit=1000")
        assert page["next"] is None
        return list(page["items"])
