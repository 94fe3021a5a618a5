"""The whole line: a proxy before each model server, Kafka and MinIO, ingester, Postgres, api."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.proxy_process import Proxy
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service


@dataclass(frozen=True)
class RealLine:
    """The addresses for clients' calls and for analysts' questions."""

    proxies: Mapping[str, Proxy]
    api: str

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


@contextmanager
def run_line(
    environment: dict[str, str],
    folder: Path,
    upstreams: Mapping[str, Sequence[Mapping[str, Any]]],
    models: Sequence[Mapping[str, Any]] = (),
) -> Iterator[RealLine]:
    """Run a proxy before each list of upstreams, an ingester and an api."""
    api_port = free_port()
    environment = environment | {"INFERENCE_STORE_API_PORT": str(api_port)}
    proxies = {
        name: Proxy(environment, folder / name, entries, models, PROXY_GRACE_SECONDS="120")
        for name, entries in upstreams.items()
    }
    services: list[Service] = [*proxies.values()]
    try:
        services += [Service(name, environment, folder) for name in ("ingester", "api")]
        for service in services:
            service.wait_ready()
        yield RealLine(proxies, f"http://127.0.0.1:{api_port}/v1")
    finally:
        for service in services:
            service.stop()
