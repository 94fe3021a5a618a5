"""The whole line: a model server, the proxy before it, Kafka and MinIO, ingester, Postgres, api."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.proxy.rest_server import upstream
from tests.polling import until
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service
from tests.upstreams.written import Stub

from .detector import detector
from .real_line import RealLine


@dataclass
class Line:
    """The addresses for clients' calls and for analysts' questions."""

    proxy: Service
    ingester: Service
    http: aiohttp.ClientSession
    api: str
    captured: int = 0

    @property
    def url(self) -> str:
        """The proxy's REST port."""
        result = re.search(
            r'"port": (\d+)[^\n]*proxy_listening|proxy_listening[^\n]*"port": (\d+)',
            self.proxy.text,
        )
        assert result is not None, self.proxy.text
        return f"http://127.0.0.1:{result[1] or result[2]}"

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the api answers."""
        method = "GET" if body is None else "POST"
        async with self.http.request(method, f"{self.api}{path}", json=body) as answer:
            result = await answer.json()
            assert answer.status == 200, result
            return dict(result)

    async def indexed(self, model: str, count: int) -> list[dict[str, Any]]:
        """The inferences of a model, once there are so many."""
        path = f"/models/{model}/inferences"

        async def there() -> int:
            async with self.http.post(f"{self.api}{path}/count", json={}) as answer:
                return int((await answer.json())["count"]) if answer.status == 200 else 0

        await until(there, lambda result: result >= count)
        query = {"limit": 1000, "include": ["metadata", "predictions"]}
        return list((await self.ask(f"{path}/query", query))["items"])


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
            PROXY_UPSTREAM=f"http://127.0.0.1:{port}",
            PROXY_PROTOCOLS="v2",
            PROXY_REPORT_SECONDS="1",
            PROXY_GRACE_SECONDS="60",
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


SERVERS = {
    "mlserver": "mlserver",
    "huggingface": "huggingface",
    "kserve": "kserve",
    "triton": "triton",
    "chariot": "chariot_engine",
    "omi": "omi_container",
}
MODELS = [
    {"model": "faces*", "task_type": "object_detection"},
    {"model": "digits", "task_type": "tabular", "project_id": "tests"},
    {"model": "sentiment", "task_type": "text_classification"},
    {"model": "story", "task_type": "text_generation"},
    {"model": "chariot", "model_id": "detector", "task_type": "object_detection"},
]


def proxied(servers: Mapping[str, Any]) -> Mapping[str, list[Mapping[str, Any]]]:
    """The upstreams of each proxy; the first serves two of them, selected by model."""
    mlserver, kserve, triton = servers["mlserver"], servers["kserve"], servers["triton"]
    huggingface = servers["huggingface"]
    v2 = ("v2", "v2-grpc")
    return {
        "mlserver": [
            upstream_entry(
                "mlserver",
                *v2,
                url=mlserver.url,
                grpc=mlserver.grpc,
                models=["digits", "faces*", "words"],
            ),
            upstream_entry(
                "kserve", *v2, "kserve-v1", url=kserve.url, grpc=kserve.grpc, models=["sums"]
            ),
        ],
        "huggingface": [
            upstream_entry("huggingface", *v2, url=huggingface.url, grpc=huggingface.grpc)
        ],
        "triton": [upstream_entry("triton", *v2, url=triton.url, grpc=triton.grpc)],
        "chariot": [upstream_entry("chariot", "chariot-v2", url=servers["chariot"].url)],
        "omi": [upstream_entry("friendly", "omi", grpc=servers["omi"].address)],
        "stub": [upstream_entry("stub", "openai", url=servers["stub"].url)],
    }


@pytest.fixture(scope="package")
def real_line(
    request: pytest.FixtureRequest,
    postgres_server: Postgres,
    kafka_server: Kafka,
    minio_server: S3,
    tmp_path_factory: pytest.TempPathFactory,
    stub: Stub,  # asked for here: so its tests run where others have started these servers
) -> Iterator[RealLine]:
    """The proxies before the real servers, and all that is behind them."""
    database, api_port = unique(), free_port()
    bucket = minio_server.create_bucket(unique())
    dsn = postgres_server.create_database(database)
    migrate(dsn)
    environment = environment_of(
        dsn,
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=kafka_server.create_topic(unique(), partitions=2),
        KAFKA_REPORTS_TOPIC=kafka_server.create_topic(unique()),
        KAFKA_GROUP=unique("group"),
        API_PORT=str(api_port),
    )
    folder = tmp_path_factory.mktemp("line")
    servers = {name: request.getfixturevalue(fixture) for name, fixture in SERVERS.items()}
    servers["stub"] = stub
    proxies = {
        name: Proxy(environment, folder / name, upstreams, MODELS)
        for name, upstreams in proxied(servers).items()
    }
    services: list[Service] = [*proxies.values()]
    try:
        services += [Service(name, environment, folder) for name in ("ingester", "api")]
        for service in services:
            service.wait_ready()
        yield RealLine(proxies, f"http://127.0.0.1:{api_port}/v1", minio_server, bucket)
    finally:
        for service in services:
            service.stop()
        postgres_server.drop_database(database)
