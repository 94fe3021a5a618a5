"""What is in the parts of exports, and in every version of every object of a bucket."""

import base64
import csv
import io
import json
import tarfile
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import arro3.io
import nanoarrow

from inference_store.inference.events import StorageKey
from inference_store.inference.events.uid import uid_of
from inference_store.objects import Blobs


def read_uids(format: str, content: bytes) -> list[UUID]:
    """Return the uids of a part's rows, in order."""
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
    """Return the values of each column."""
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
    """Return an object of the default bucket."""
    return blobs.get(StorageKey(blobs.buckets.default, name), limit=100_000_000)
