"""Requests made again from the bucket alone: the data blobs, and the rest beside the metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_store.proxy.capture.request_remainder import rebuild_messages
from tests.servers.minio import S3


@dataclass(frozen=True)
class RebuiltRequest:
    """A request as it can be sent again."""

    method: str
    path: str
    headers: Mapping[str, str]
    messages: tuple[bytes, ...]
    """A body over REST, decoded; each message over gRPC."""
    datas: tuple[bytes, ...]
    """The data of its inferences, in their order."""
    events: tuple[Mapping[str, Any], ...]
    """The events of its inferences, as they are stored beside the metadata."""


def list_requests(s3: S3, bucket: str, model: str) -> list[RebuiltRequest]:
    """List all requests to a model in the order in which they came, from the bucket only."""
    client = s3.client()
    listed = client.list_objects(bucket, prefix=f"captures/{model}/", recursive=True)
    objects = {
        listed_object.object_name: _read(s3, bucket, str(listed_object.object_name))
        for listed_object in listed
    }
    documents = {
        key: json.loads(value) for key, value in objects.items() if str(key).endswith("/metadata")
    }
    requests = []
    for key, document in sorted(documents.items()):
        if "of" in document["request"]:
            continue  # the rest is stored with the first of its inferences
        others = [other for other in documents.values() if other["request"].get("of") == key]
        others.sort(key=lambda other: other["event"]["batch_index"])
        requests.append(_rebuild([document, *others], objects))
    return sorted(requests, key=lambda again: again.events[0]["request_received_at"])


def _rebuild(documents: list[Any], objects: Mapping[str | None, bytes]) -> RebuiltRequest:
    events = [document["event"] for document in documents]
    request = documents[0]["request"]
    own = {
        document["event"]["batch_index"]: document["request"].get("parts", ())
        for document in documents
    }
    data = {
        event["batch_index"]: objects[event["data_storage_key"]]
        for event in events
        if event["data_storage_key"]
    }
    query = f"?{request['query']}" if request["query"] else ""
    return RebuiltRequest(
        method=request["method"],
        path=request["path"] + query,
        headers=dict(request["headers"]),
        messages=tuple(rebuild_messages(request, data, own)),
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
