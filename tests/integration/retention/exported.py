"""Exports planted in Postgres and the bucket, requested as the api requests them, or over HTTP."""

import asyncio
import base64
import csv
import hashlib
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import arro3.io
import httpx
import nanoarrow
from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export import jobs
from inference_store.export.columns import BlobChoice
from inference_store.export.listing import Included, describe_question
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index.tables import export_download, export_erased, export_job, export_part
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras, uid_of
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.integration.stored_inferences import NewInference
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
            "keys": {},
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
    async with storing.engine.begin() as connection:
        document = await describe_question(
            connection, model, None, text=None, since=None, until=NOW, include=include, blobs=blobs
        )
        new = jobs.NewExport(model, format, document, "test", NOW + timedelta(days=1))
        return (await jobs.request_export(connection, new)).id


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

    async def wait_until_ended(self, exports: Mapping[str, str], seconds: float = 600) -> None:
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

    async def wait_until_certified(self, erasure: str, seconds: float = 600) -> Shown:
        async def list_certificates() -> list[Shown]:
            return list((await self.call("GET", f"/certificates?erasure={erasure}"))["items"])

        [item] = await until(list_certificates, bool, seconds=seconds)
        return dict((await self.call("GET", f"/certificates/{item['number']}"))["document"])

    async def list_erased(self, export: str) -> list[Shown]:
        page = await self.call("GET", f"/exports/{export}/erased?limit=1000")
        assert page["next"] is None
        return list(page["items"])


def read_uids(format: str, content: bytes) -> list[UUID]:
    if format == "jsonl":
        return [UUID(json.loads(line)["uid"]) for line in content.splitlines()]
    if format == "chariot":
        return [compute_uid(json.loads(line)) for line in content.splitlines()]
    if format == "webdataset":
        return [UUID(name.removesuffix(".json")) for name in read_tar(content) if ".json" in name]
    if format == "csv":
        rows = csv.DictReader(io.StringIO(content.decode(), newline=""))
        return [UUID(row["uid"]) for row in rows]
    if format == "parquet":
        return [UUID(uid) for uid in read_parquet(content)["uid"]]
    stream = nanoarrow.ArrayStream.from_readable(io.BytesIO(content))
    array = stream.read_all()
    names = [field.name for field in array.schema.fields]
    return [UUID(uid) for uid in array.child(names.index("uid")).to_pylist()]


def compute_uid(line: dict[str, Any]) -> UUID:
    """Return the uid of an inference of the reference system, which has none."""
    received_at = datetime.fromisoformat(line["request_received_at"])
    return uid_of(received_at, line["model_id"], line["inference_id"])


def read_tar(content: bytes) -> dict[str, bytes]:
    """Return the contents of a tar file's members by their names, in order."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file is not None}


def read_parquet(content: bytes) -> dict[str, list[Any]]:
    table = arro3.io.read_parquet(io.BytesIO(content)).read_all()
    return {name: list(table.column(name).to_pylist()) for name in table.column_names}


def decode_object(name: str, content: bytes) -> bytes:
    """Return the bytes of an object with those that compression hides, the values of Parquet, and
    that base64 hides, in JSON lines."""
    hidden: list[bytes] = []
    if name.endswith(".parquet"):
        values = [value for values in read_parquet(content).values() for value in values]
        hidden = [v if isinstance(v, bytes) else str(v).encode() for v in values]
    elif name.endswith(".jsonl"):
        lines = [json.loads(line) for line in content.splitlines()]
        texts = [text for line in lines for text in line.get("bytes", {}).values()]
        hidden = [base64.b64decode(text) for text in texts if text is not None]
    return b"\n".join([content, *hidden])


def read_versions(blobs: Blobs, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the key and the decoded bytes of each version of each object of the bucket."""
    client, bucket = blobs._minio, blobs.buckets.default
    listed = client.list_objects(bucket, prefix=prefix, recursive=True, include_version=True)
    for item in listed:
        name = str(item.object_name)
        if item.is_delete_marker:
            yield name, b""
            continue
        answer = client.get_object(bucket, name, version_id=item.version_id)
        try:
            yield name, decode_object(name, answer.read())
        finally:
            answer.close()
            answer.release_conn()


def list_versions(blobs: Blobs, prefix: str) -> list[str]:
    """Return the key of each version and of each marker of a deletion, in order."""
    client, bucket = blobs._minio, blobs.buckets.default
    listed = client.list_objects(bucket, prefix=prefix, recursive=True, include_version=True)
    return sorted(str(item.object_name) for item in listed)


def get(blobs: Blobs, name: str) -> bytes:
    return blobs.get(StorageKey(blobs.buckets.default, name), limit=100_000_000)


JPEG = b"\xff\xd8\xff\xe0"
Contents: TypeAlias = dict[str, dict[str, bytes | None]]
"""By uid: the bytes of the input and of the response, None: missing."""


def put_blobs(blobs: Blobs, inference: NewInference, data: bytes, response: bytes) -> NewInference:
    """Put an inference's input and response into the bucket; return it with their keys."""
    keys = [f"captures/{inference.inference_id}/{name}" for name in ("data", "response")]
    for key, content in zip(keys, (data, response), strict=True):
        place = StorageKey(blobs.buckets.default, key)
        blobs.put(place, content, content_type="application/octet-stream")
    names = [f"{blobs.buckets.default}/{key}" for key in keys]
    extras = Extras(data_size=len(data), data_content_type="image/jpeg")
    return replace(inference, keys=(names[0], names[1], None), extras=extras)


def read_contents(format: str, content: bytes) -> Contents:
    """Return the blobs that a part copies; of WebDataset the inputs."""
    if format == "webdataset":
        return _read_webdataset(content)
    if format == "jsonl":
        lines = [json.loads(line) for line in content.splitlines()]
        return {line["uid"]: {n: _decode(t) for n, t in line["bytes"].items()} for line in lines}
    columns = read_parquet(content) if format == "parquet" else read_arrow(content)
    rows = zip(columns["uid"], columns["bytes.data"], columns["bytes.response"], strict=True)
    return {uid: {"data": data, "response": response} for uid, data, response in rows}


def read_links(format: str, content: bytes) -> list[str]:
    if format == "parquet":
        return list(read_parquet(content)["urls.data"])
    if format == "arrow":
        return list(read_arrow(content)["urls.data"])
    if format == "csv":
        return [row["urls.data"] for row in csv.DictReader(content.decode().splitlines())]
    texts = read_tar(content).values() if format == "webdataset" else content.splitlines()
    items = [json.loads(text) for text in texts]
    if format == "chariot":
        return [item["presigned_url"] for item in items]
    return [item["urls"]["data"] for item in items]


def _read_webdataset(content: bytes) -> Contents:
    contents: Contents = {}
    for name, data in read_tar(content).items():
        uid, _, suffix = name.partition(".")
        contents.setdefault(uid, {"data": None})
        if suffix != "json":
            assert suffix in {"jpg", "bin"}
            contents[uid]["data"] = data
    return contents


def read_arrow(content: bytes) -> dict[str, list[Any]]:
    array = nanoarrow.ArrayStream.from_readable(io.BytesIO(content)).read_all()
    rows = list(array.to_pylist())
    return {name: [row[name] for row in rows] for name in rows[0]}


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
