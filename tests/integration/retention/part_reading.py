"""What is in the parts of exports, in their blobs, and in each version of each object."""

import base64
import csv
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import arro3.io
import nanoarrow

from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras, uid_of
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference


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
            assert suffix == "jpg"
            contents[uid]["data"] = data
    return contents


def read_arrow(content: bytes) -> dict[str, list[Any]]:
    array = nanoarrow.ArrayStream.from_readable(io.BytesIO(content)).read_all()
    rows = list(array.to_pylist())
    return {name: [row[name] for row in rows] for name in rows[0]}


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
