"""What is in the parts of exports, and in every version of every object of a bucket."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import arro3.io
import nanoarrow

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs


def read_uids(format: str, content: bytes) -> list[UUID]:
    """Return the uids of a part's rows, in order."""
    if format == "jsonl":
        return [UUID(json.loads(line)["uid"]) for line in content.splitlines()]
    if format == "csv":
        rows = csv.DictReader(io.StringIO(content.decode(), newline=""))
        return [UUID(row["uid"]) for row in rows]
    if format == "parquet":
        return [UUID(uid) for uid in read_parquet(content)["uid"]]
    stream = nanoarrow.ArrayStream.from_readable(io.BytesIO(content))
    array = stream.read_all()
    names = [field.name for field in array.schema.fields]
    return [UUID(uid) for uid in array.child(names.index("uid")).to_pylist()]


def read_parquet(content: bytes) -> dict[str, list[Any]]:
    """Return the values of each column."""
    table = arro3.io.read_parquet(io.BytesIO(content)).read_all()
    return {name: list(table.column(name).to_pylist()) for name in table.column_names}


def decode_object(name: str, content: bytes) -> bytes:
    """Return the bytes of an object with those that compression hides: the values of Parquet."""
    if not name.endswith(".parquet"):
        return content
    values = [str(value) for values in read_parquet(content).values() for value in values]
    return b"\n".join([content, *(value.encode() for value in values)])


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
