"""`doctor --send` against real services: every step succeeds, or the one that fails says why."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]})


async def send(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run the doctor; return its exit code, and its lines about what it sent."""
    words = ("doctor", "--send", *arguments)
    done = await asyncio.to_thread(run_command, *words, environment=environment)
    assert TOKEN not in done.stdout + done.stderr
    return done.returncode, done.stdout[done.stdout.find(" send: ") :] + done.stderr


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
    service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
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


async def test_every_step_succeeds(installation: Installation) -> None:
    """Of an event, of a call that the model server refuses, and of one that it answers."""
    await asyncio.to_thread(installation.ingester)
    proxy, model = installation.proxy, f"{installation.proxy}/v2/models/doubles/infer"
    doubles = ("--proxy", model, "--proxy-model", "doubles", "--proxy-request", REQUEST)
    cases: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "a query by metadata and prediction finds it"),
        (("--api", installation.api, "--proxy", proxy), "its answer has status 404"),
        (doubles, "its answer has status 200"),
    )
    admin = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        ClientSession(installation.api, headers=admin) as session,
        session.put("/v1/models/doubles", json={}) as answer,
    ):
        assert answer.status == 201
    for arguments, sentence in cases:
        code, output = await send(installation.environment, "--deadline=75", *arguments)
        assert code < 2, (arguments, output)  # the servers of the tests deserve warnings
        assert [each for each in (sentence, "it is hidden again") if each not in output] == [], (
            output
        )


async def test_the_step_that_fails_is_named(installation: Installation, minio_server: S3) -> None:
    api, nobody = installation.api, f"http://127.0.0.1:{free_port()}"
    away = {"KAFKA_BOOTSTRAP_SERVERS": nobody.removeprefix("http://")}
    triples = f"{installation.proxy}/v2/models/triples/infer"
    cases: tuple[tuple[dict[str, str], tuple[str, ...], tuple[str, ...]], ...] = (
        (away, (), ("three objects are in the bucket", "See the checks of Kafka")),
        ({"API_TOKEN": "x" * 16}, ("--api", api), ("answered 401",)),
        ({}, ("--api", "store.example"), ("store.example does not answer",)),
        ({}, ("--api", nobody), ("does not answer", "Name it by --api")),
        ({}, ("--proxy", nobody), (f"{nobody} does not answer",)),
        ({}, ("--proxy", triples, "--proxy-request", REQUEST), ("answered 404", "no such model")),
        ({}, ("--ca", "missing.pem"), ("--ca: ",)),
        (
            {},
            ("--api", api, "--deadline", "1"),
            (
                "was not indexed within 4 s",
                f"Is {api} the api of this store",
                "Once it is indexed, erase it: DELETE /v1/models/",
            ),
        ),
    )
    bucket = installation.environment["INFERENCE_STORE_S3_BUCKET"]
    for changes, arguments, sentences in cases:
        changed = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        code, output = await send(installation.environment | changed, *arguments)
        assert code == 2, (arguments, output)
        assert [each for each in sentences if each not in output] == [], (arguments, output)
        if changes is away:
            objects = minio_server.client().list_objects(bucket, prefix="doctor/", recursive=True)
            assert [item.object_name for item in objects] == []
