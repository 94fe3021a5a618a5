"""What is in the parts of exports, and in their blobs."""

import base64
import csv
import io
import json
import tarfile
from dataclasses import replace
from typing import Any, TypeAlias

import arro3.io
import nanoarrow

from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference


def read_tar(content: bytes) -> dict[str, bytes]:
    """Return the contents of a tar file's members by their names, in order."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file is not None}


def read_parquet(content: bytes) -> dict[str, list[Any]]:
    table = arro3.io.read_parquet(io.BytesIO(content)).read_all()
    return {name: list(table.column(name).to_pylist()) for name in table.column_names}


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
