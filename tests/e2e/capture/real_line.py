"""The whole line behind real model servers: a proxy before each, one ingester, one api."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.exchanges import rebuild_messages
from tests.proxy_process import Proxy
from tests.servers.minio import S3
from tests.servers.waiting import wait_until

LIST = json.dumps([{"key": "frame_number", "type": "int", "value": "9001"}])


@dataclass(frozen=True)
class RebuiltRequest:
    """A request as it can be sent again."""

    path: str
    headers: Mapping[str, str]
    messages: tuple[bytes, ...]
    """A body over REST, decoded; each message over gRPC."""
    received_at: str

    def send_to(self, url: str) -> httpx.Response:
        content, headers = self.messages[0], self.headers
        return httpx.post(url + self.path, content=content, headers=headers, timeout=120)


def _rebuild(documents: list[Any], objects: Mapping[str, bytes]) -> RebuiltRequest:
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
        path=request["path"] + query,
        headers=dict(request["headers"]),
        messages=tuple(rebuild_messages(request["messages"], data, own)),
        received_at=events[0]["request_received_at"],
    )


@dataclass(frozen=True)
class RealLine:
    """The addresses for clients' calls and for analysts' questions."""

    proxies: Mapping[str, Proxy]
    api: str
    s3: S3
    bucket: str

    def captured(
        self, model: str, count: int, *, protocol: str | None = None
    ) -> list[dict[str, Any]]:
        query: dict[str, Any] = {"limit": 1000, "include": ["metadata", "predictions"]}
        if protocol is not None:
            query["filter"] = f"protocol = '{protocol}'"
        listed: list[dict[str, Any]] = []

        def enough() -> bool:
            listed[:] = self._items(model, query)
            return len(listed) >= count

        wait_until(enough, seconds=180, what=f"{count} inferences of {model}")
        assert len(listed) == count, [item["inference_id"] for item in listed]
        return sorted(listed, key=lambda item: (item["received_at"], item["batch_index"]))

    def blob(self, item: Mapping[str, Any], which: str) -> bytes:
        path = f"/models/{item['model_id']}/inferences/uid:{item['uid']}/{which}"
        answer = httpx.get(self.api + path, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.content

    def again(self, model: str) -> list[RebuiltRequest]:
        """List all requests to a model in the order in which they came, from the bucket only."""
        client = self.s3.client()
        listed = client.list_objects(self.bucket, prefix=f"captures/{model}/", recursive=True)
        keys = [str(each.object_name) for each in listed]
        objects = {key: client.get_object(self.bucket, key).data for key in keys}
        documents = {key: json.loads(objects[key]) for key in keys if key.endswith("/metadata")}
        requests = []
        for key, document in documents.items():
            if "of" in document["request"]:
                continue  # the rest is stored with the first of its inferences
            others = [other for other in documents.values() if other["request"].get("of") == key]
            others.sort(key=lambda other: other["event"]["batch_index"])
            requests.append(_rebuild([document, *others], objects))
        return sorted(requests, key=lambda again: again.received_at)

    def accounting(self) -> Any:
        return httpx.get(f"{self.api}/accounting", timeout=120).json()

    def _items(self, model: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the items of a query; none while there is no such model."""
        answer = httpx.post(
            f"{self.api}/models/{model}/inferences/query", json=dict(query), timeout=120
        )
        # the model, or its first key, is not there yet; or the api is busy
        if answer.status_code in (404, 422, 429, 503):
            return []
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])


def read_metadata(item: Mapping[str, Any]) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in item["metadata"]}


def hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def post(url: str, content: Any, **headers: str) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    sent = {"Content-Type": "application/json", **headers}
    answer = httpx.post(url, content=body, headers=sent, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer
