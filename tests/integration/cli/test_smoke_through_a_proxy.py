"""The call of the smoke test through a real proxy: captured, found and erased, or a fault."""

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

from .test_smoke import run_smoke

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]})


async def answer_request(request: web.Request) -> web.StreamResponse:
    """Answer for the model `doubles`; others are not found."""
    if "/models/doubles/" not in request.path:
        return web.json_response({"error": "no such model"}, status=404)
    output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}
    return web.json_response({"model_name": "doubles", "outputs": [output]})


@dataclass
class Installation:
    """The services that the smoke test calls."""

    environment: dict[str, str]
    api: str
    proxy: str

    async def run_smoke(self, *arguments: str, proxy: str = "") -> tuple[int, str]:
        """Run the smoke test; return its exit code and its output."""
        addresses = ("--api", self.api, "--proxy", proxy or self.proxy)
        arguments_ = (*addresses, "--seconds", "300", *arguments)
        done = await asyncio.to_thread(run_smoke, self.environment, *arguments_)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
async def installation(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Installation]:
    port = free_port()
    environment = service_environment(
        KAFKA_TOPIC=topic(), KAFKA_REPORTS_TOPIC=topic(), API_PORT=str(port)
    )
    async with upstream(answer_request) as behind:
        entries = [upstream_entry("one", "v2", url=f"http://127.0.0.1:{behind}")]
        proxy = Proxy(environment, tmp_path, entries)
        services = [proxy, *(Service(name, environment, tmp_path) for name in ("api", "ingester"))]
        try:
            for service in services:
                await asyncio.to_thread(service.wait_ready)
            yield Installation(environment, f"http://127.0.0.1:{port}", proxy.url)
        finally:
            for service in services:
                await asyncio.to_thread(service.stop)


async def test_captures_finds_and_erases_a_call(installation: Installation) -> None:
    code, output = await installation.run_smoke()
    assert code == 0, output
    assert "its answer has status 404" in output
    assert "it is captured and indexed" in output
    model = ("--proxy-path", "/v2/models/doubles/infer", "--proxy-model", "doubles")
    code, output = await installation.run_smoke(*model, "--proxy-request", REQUEST)
    assert code == 0, output
    assert "its answer has status 200" in output


async def test_reports_what_fails(installation: Installation) -> None:
    arguments = ("--proxy-path", "/v2/models/triples/infer", "--proxy-request", REQUEST)
    code, output = await installation.run_smoke(*arguments)
    assert code == 1
    assert "triples/infer answered 404" in output
    assert "no such model" in output
    nobody = f"http://127.0.0.1:{free_port()}"
    code, output = await installation.run_smoke(proxy=nobody)
    assert code == 1
    assert f"the proxy at {nobody} does not answer" in output
    code, output = await installation.run_smoke("--proxy-request", "{")
    assert code == 1
    assert "--proxy-request is no JSON" in output
    elsewhere = ("--proxy-model", "another", "--seconds", "1")
    code, output = await installation.run_smoke(*elsewhere)
    assert code == 1
    assert "was not indexed within 1 s" in output
