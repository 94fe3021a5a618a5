"""The smoke test's call through a real proxy: captured, found, erased; or it says what is wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.service_process import Service

from .test_smoke import smoke

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]})


async def answers(request: web.Request) -> web.StreamResponse:
    """One model is here; another is not."""
    if "/models/doubles/" not in request.path:
        return web.json_response({"error": "no such model"}, status=404)
    output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}
    return web.json_response({"model_name": "doubles", "outputs": [output]})


@dataclass
class Line:
    """What the smoke test is told."""

    environment: dict[str, str]
    api: str
    proxy: str

    async def smoke(self, *arguments: str, proxy: str = "") -> tuple[int, str]:
        """Exit code, and what it said."""
        told = ("--api", self.api, "--proxy", proxy or self.proxy, *arguments)
        done = await asyncio.to_thread(smoke, self.environment, *told)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
async def line(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Line]:
    port = free_port()
    environment = service_environment(
        KAFKA_TOPIC=topic(), KAFKA_REPORTS_TOPIC=topic(), API_PORT=str(port)
    )
    async with upstream(answers) as behind:
        entries = [upstream_entry("one", "v2", url=f"http://127.0.0.1:{behind}")]
        proxy = Proxy(environment, tmp_path, entries)
        services = [proxy, *(Service(name, environment, tmp_path) for name in ("api", "ingester"))]
        try:
            for service in services:
                await asyncio.to_thread(service.wait_ready)
            yield Line(environment, f"http://127.0.0.1:{port}", proxy.url)
        finally:
            for service in services:
                await asyncio.to_thread(service.stop)


async def test_a_call_is_captured_found_and_erased(line: Line) -> None:
    code, said = await line.smoke()
    assert code == 0, said
    assert "its answer has status 404" in said
    assert "it is captured and indexed" in said
    model = ("--proxy-path", "/v2/models/doubles/infer", "--proxy-model", "doubles")
    code, said = await line.smoke(*model, "--proxy-request", REQUEST)
    assert code == 0, said
    assert "its answer has status 200" in said


async def test_what_does_not_work_is_said(line: Line) -> None:
    wanted = ("--proxy-path", "/v2/models/triples/infer", "--proxy-request", REQUEST)
    code, said = await line.smoke(*wanted)
    assert code == 1
    assert "triples/infer answered 404" in said
    assert "no such model" in said
    nobody = f"http://127.0.0.1:{free_port()}"
    code, said = await line.smoke(proxy=nobody)
    assert code == 1
    assert f"the proxy at {nobody} does not answer" in said
    code, said = await line.smoke("--proxy-request", "{")
    assert code == 1
    assert "--proxy-request is no JSON" in said
    elsewhere = ("--proxy-model", "another", "--seconds", "1")
    code, said = await line.smoke(*elsewhere)
    assert code == 1
    assert "was not indexed within 1 s" in said
