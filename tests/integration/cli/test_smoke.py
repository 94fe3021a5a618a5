"""The smoke test against real services: it succeeds if they run, and reports what fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from inference_store.operations.smoke.capture import MODEL
from inference_store.operations.smoke.rest import Rest
from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]})


async def run_smoke(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run the smoke test; return its exit code and its output."""
    done = await asyncio.to_thread(run_command, "smoke", *arguments, environment=environment)
    assert TOKEN not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


async def answer_request(request: web.Request) -> web.StreamResponse:
    """Answer for the model `doubles`; others are not found."""
    if "/models/doubles/" not in request.path:
        return web.json_response({"error": "no such model"}, status=404)
    output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1.0]}
    return web.json_response({"model_name": "doubles", "outputs": [output]})


@dataclass
class Installation:
    """An api and a proxy that run, and an ingester that does once it is started."""

    environment: dict[str, str]
    api: str
    proxy: str
    ingester: Callable[[], None]


@pytest.fixture
async def installation(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Installation]:
    port = free_port()
    environment = service_environment(
        KAFKA_TOPIC=topic(),
        KAFKA_REPORTS_TOPIC=topic(),
        API_PORT=str(port),
        AUTH="on",
        API_TOKEN=TOKEN,
        INGESTER_UNKNOWN_MODELS="refuse",
    )
    async with upstream(answer_request) as behind:
        entries = [upstream_entry("one", "v2", url=f"http://127.0.0.1:{behind}")]
        proxy = Proxy(environment, tmp_path, entries)
        services = [proxy, Service("api", environment, tmp_path)]

        def start_ingester() -> None:
            services.append(Service("ingester", environment, tmp_path).wait_ready())

        try:
            for service in services:
                await asyncio.to_thread(service.wait_ready)
            yield Installation(environment, f"http://127.0.0.1:{port}", proxy.url, start_ingester)
        finally:
            for service in services:
                await asyncio.to_thread(service.stop)


async def test_stores_finds_and_erases(installation: Installation) -> None:
    """An event of its own, and a call through the proxy."""
    await asyncio.to_thread(installation.ingester)
    for name in (MODEL, "doubles"):
        # as an event leaves a model that comes before its registration
        rest = Rest(installation.api, TOKEN)
        await asyncio.to_thread(rest.ask, "PUT", f"/v1/models/{name}", {})
    # it asks the api that the settings name
    code, output = await run_smoke(installation.environment, "--seconds", "300")
    assert (code, "The line works" in output) == (0, True), output
    through = ("--api", installation.api, "--proxy", installation.proxy, "--seconds", "300")
    code, output = await run_smoke(installation.environment, *through)
    assert code == 0, output
    assert "its answer has status 404" in output
    assert "it is captured and indexed" in output
    model = ("--proxy-path", "/v2/models/doubles/infer", "--proxy-model", "doubles")
    request = ("--proxy-request", REQUEST)
    code, output = await run_smoke(installation.environment, *through, *model, *request)
    assert code == 0, output
    assert "its answer has status 200" in output


async def test_reports_what_fails(installation: Installation, minio_server: S3) -> None:
    api, nobody = installation.api, f"http://127.0.0.1:{free_port()}"
    away = {"KAFKA_BOOTSTRAP_SERVERS": nobody.removeprefix("http://")}
    cases: tuple[tuple[dict[str, str], tuple[str, ...], tuple[str, ...]], ...] = (
        (
            away,
            ("--api", api),
            ("three blobs are in the bucket", "what was stored is deleted again"),
        ),
        ({"API_TOKEN": "another"}, ("--api", api), ("answered 401",)),
        ({}, ("--api", "store.example"), ("failed: 'store.example' is no address of an api",)),
        ({}, ("--api", nobody), ("does not answer",)),
        (
            {},
            ("--api", api, "--seconds", "0.5"),
            (
                "was not indexed within 0.5 s: look at the ingester's /health/ready",
                f"If the api at {api}, which was asked, is another store's",
                "once it is indexed, erase it: DELETE /v1/models/inference-store-smoke/",
            ),
        ),
    )
    bucket = installation.environment["INFERENCE_STORE_S3_BUCKET"]
    for changes, arguments, sentences in cases:
        changed = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        code, output = await run_smoke(installation.environment | changed, *arguments)
        assert code == 1, (arguments, output)
        assert [each for each in sentences if each not in output] == [], (arguments, output)
        if changes is away:
            objects = minio_server.client().list_objects(bucket, recursive=True)
            assert [item.object_name for item in objects] == []


async def test_reports_what_fails_of_a_call_through_the_proxy(installation: Installation) -> None:
    await asyncio.to_thread(installation.ingester)
    nobody = f"http://127.0.0.1:{free_port()}"
    proxy, patient = ("--proxy", installation.proxy), ("--seconds", "300")
    triples = ("--proxy-path", "/v2/models/triples/infer", "--proxy-request", REQUEST)
    cases: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        ((*proxy, *triples, *patient), ("triples/infer answered 404", "no such model")),
        (("--proxy", nobody, *patient), (f"the proxy at {nobody} does not answer",)),
        ((*proxy, "--proxy-request", "{", *patient), ("--proxy-request is no JSON",)),
        ((*proxy, "--proxy-model", "another", "--seconds", "1"), ("was not indexed within 1 s",)),
    )
    for arguments, sentences in cases:
        code, output = await run_smoke(installation.environment, *arguments)
        assert code == 1, (arguments, output)
        assert [each for each in sentences if each not in output] == [], (arguments, output)
