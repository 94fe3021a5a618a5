"""The whole line: a model server, the proxy before it, Kafka and MinIO, ingester, Postgres, api."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.proxy.rest_server import upstream
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.ports import free_port
from tests.service_process import Service

from .detector import detector


@dataclass
class Line:
    """Where a client calls, and where an analyst asks."""

    proxy: Service
    ingester: Service
    http: aiohttp.ClientSession
    api: str
    captured: int = 0

    @property
    def url(self) -> str:
        """The proxy's REST port."""
        found = re.search(
            r'"port": (\d+)[^\n]*proxy_listening|proxy_listening[^\n]*"port": (\d+)',
            self.proxy.text,
        )
        assert found is not None, self.proxy.text
        return f"http://127.0.0.1:{found[1] or found[2]}"

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the api answers."""
        method = "GET" if body is None else "POST"
        async with self.http.request(method, f"{self.api}{path}", json=body) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            return dict(found)

    async def indexed(self, model: str, count: int) -> list[dict[str, Any]]:
        """The inferences of a model, once there are so many."""
        path = f"/models/{model}/inferences"

        async def there() -> int:
            async with self.http.post(f"{self.api}{path}/count", json={}) as answer:
                return int((await answer.json())["count"]) if answer.status == 200 else 0

        await until(there, lambda found: found >= count, seconds=30)
        asked = {"limit": 1000, "include": ["metadata", "predictions"]}
        return list((await self.ask(f"{path}/query", asked))["items"])


@pytest.fixture
async def line(
    service_environment: Any, topic: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Line]:
    api_port = free_port()
    async with upstream(detector) as port:
        environment = service_environment(
            KAFKA_TOPIC=topic(2),
            KAFKA_REPORTS_TOPIC=topic(1),
            KAFKA_GROUP=unique("group"),
            API_PORT=str(api_port),
            PROXY_PORT="0",
            PROXY_ADMIN_PORT="0",
            PROXY_UPSTREAM=f"http://127.0.0.1:{port}",
            PROXY_PROTOCOLS="v2",
            PROXY_REPORT_SECONDS="1",
        )
        names = ("proxy", "ingester", "api")
        started = [Service(name, environment, tmp_path) for name in names]
        try:
            for service in started:
                await asyncio.to_thread(service.wait_ready)
            async with aiohttp.ClientSession() as http:
                yield Line(started[0], started[1], http, f"http://127.0.0.1:{api_port}/v1")
        finally:
            for service in started:
                await asyncio.to_thread(service.stop)
