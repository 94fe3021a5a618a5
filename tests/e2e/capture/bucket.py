"""Requests made again from the bucket alone: the data blobs, and the rest beside the metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_store.proxy.capture.kept_request import rebuilt
from tests.servers.minio import S3


@dataclass(frozen=True)
class Again:
    """A request as it can be sent again."""

    method: str
    path: str
    headers: Mapping[str, str]
    messages: tuple[bytes, ...]
    """A body over REST, decoded; each message over gRPC."""
    datas: tuple[bytes, ...]
    """The data of its inferences, in their order."""
    events: tuple[Mapping[str, Any], ...]
    """The events of its inferences, as they stand beside the metadata."""


def requests_in(s3: S3, bucket: str, model: str) -> list[Again]:
    """All requests to a model, in the order in which they came; nothing else is looked at."""
    client = s3.client()
    listed = client.list_objects(bucket, prefix=f"captures/{model}/", recursive=True)
    objects = {one.object_name: _read(s3, bucket, str(one.object_name)) for one in listed}
    documents = {
        key: json.loads(value) for key, value in objects.items() if str(key).endswith("/metadata")
    }
    found = []
    for key, document in sorted(documents.items()):
        if "of" in document["request"]:
            continue  # the rest of it stands with the first of its inferences
        others = [each for each in documents.values() if each["request"].get("of") == key]
        others.sort(key=lambda each: each["event"]["batch_index"])
        found.append(_again([document, *others], objects))
    return sorted(found, key=lambda again: again.events[0]["request_received_at"])


def _again(documents: list[Any], objects: Mapping[str | None, bytes]) -> Again:
    events = [each["event"] for each in documents]
    request = documents[0]["request"]
    own = {each["event"]["batch_index"]: each["request"].get("parts", ()) for each in documents}
    data = {
        event["batch_index"]: objects[event["data_storage_key"]]
        for event in events
        if event["data_storage_key"]
    }
    query = f"?{request['query']}" if request["query"] else ""
    return Again(
        method=request["method"],
        path=request["path"] + query,
        headers=dict(request["headers"]),
        messages=tuple(rebuilt(request, data, own)),
        datas=tuple(data[index] for index in sorted(data)),
        events=tuple(events),
    )


def _read(s3: S3, bucket: str, key: str) -> bytes:
    answer = s3.client().get_object(bucket, key)
    try:
        return bytes(answer.read())
    finally:
        answer.close()
        answer.release_conn()
