"""Logs of the services: whole lines with ids, and nothing that was sent to them or entrusted."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.collector import Collector
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.transactions import execute, fetch

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
TOKEN = "api-token-of-the-log-test"
PAYLOAD = "payload-7d1c"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MODEL = "people-detector"


def make_capture(number: int) -> Any:
    """A capture whose every value is distinctive."""
    metadata = [{"key": "note", "type": "string", "value": f"{PAYLOAD}-metadata"}]
    predictions = [{"label": f"{PAYLOAD}-label", "score": 0.5}]
    return capture(number, metadata=metadata, predictions=predictions)


async def ask(
    api: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, str]:
    own_headers = {"Authorization": f"Bearer {TOKEN}", "traceparent": TRACEPARENT} | headers
    async with (
        aiohttp.ClientSession(headers=own_headers) as session,
        session.request(method, f"{api}/v1{path}", json=body) as answer,
    ):
        await answer.read()
        return answer.status, answer.headers["x-request-id"]


async def test_no_payload_and_no_secret_is_logged(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    engine: AsyncEngine,
    minio_server: S3,
    tmp_path: Path,
) -> None:
    name, port = topic(1), free_port()
    environment = service_environment(
        KAFKA_TOPIC=name, API_PORT=str(port), AUTH="on", API_TOKEN=TOKEN, LOG_LEVEL="debug"
    )
    async with Collector() as collector:
        environment |= collector.environment()
        async with AsyncExitStack() as stopped:
            services = []
            for service_name in ("ingester", "api", "retention"):
                services.append(Service(service_name, environment, tmp_path))
                stopped.push_async_callback(asyncio.to_thread, services[-1].stop)
            for service in services:
                await asyncio.to_thread(service.wait_ready)
            async with Producer(environment, name) as producer:
                await _publish(producer)
            parked_and_dead = "SELECT was_dead FROM unsettled_event ORDER BY was_dead"
            await until(lambda: fetch(engine, parked_and_dead), lambda s: s == [False, True, True])
            request_ids = await _ask(f"http://127.0.0.1:{port}", engine)
    logs_by_service = {service.name: service.text for service in services}
    for secret in (TOKEN, minio_server.secret_key, PAYLOAD):
        assert not [name for name, lines in logs_by_service.items() if secret in lines], secret
    _check_whole_lines(logs_by_service)
    _check_joined_lines(logs_by_service["api"], *request_ids)


async def _publish(producer: Producer) -> None:
    await producer.produce(*(make_capture(number) for number in range(5)))
    await producer.publish(f'{{"model_id": "{PAYLOAD}-broken'.encode(), key=PAYLOAD.encode())
    nul = b'{"model_id": "' + PAYLOAD.encode() + b'\\u0000"}'
    await producer.publish(nul, headers=[("note", PAYLOAD.encode())])
    late = make_capture(99)
    await producer.put(late, "metadata")
    await producer.publish(late.event)


async def _ask(api: str, engine: AsyncEngine) -> tuple[str, str]:
    """Ask questions that are answered, refused, and fail inside. Return the ids of two failures."""
    key = {"key": "note", "type": "string", "operator": "eq", "value": f"{PAYLOAD}-metadata"}
    path = f"/models/{MODEL}/inferences/query"
    assert (await ask(api, "POST", path, {"metadata_filter": [key]}))[0] == 200
    assert (await ask(api, "POST", path, {"metadata_filter": [key | {"key": PAYLOAD}]}))[0] == 422
    assert (await ask(api, "POST", path, {PAYLOAD: PAYLOAD}))[0] == 422
    wrong = {"Authorization": "Bearer wrong"}
    assert (await ask(api, "GET", f"/models/{PAYLOAD}", **wrong))[0] == 401
    await execute(engine, "ALTER TABLE metadata_string RENAME COLUMN value TO away")
    status, failed = await ask(
        api, "POST", path, {"metadata_filter": [key]}, **{"x-request-id": "mine-1"}
    )
    assert (status, failed) == (500, "mine-1")
    status, request_id = await ask(
        api, "POST", path, {"metadata_filter": [key]}, **{"x-request-id": "a b"}
    )
    assert (status, len(request_id)) == (500, 36)
    return failed, request_id


def _check_whole_lines(logs_by_service: dict[str, str]) -> None:
    for name, lines in logs_by_service.items():
        for line in lines.splitlines():
            event = json.loads(line)
            assert event["service"] == name
            assert {"event", "level", "timestamp"} <= set(event)


def _check_joined_lines(lines: str, *request_ids: str) -> None:
    failures = [json.loads(line) for line in lines.splitlines() if "request_failed" in line]
    assert [event["request_id"] for event in failures] == list(request_ids)
    assert {event["trace_id"] for event in failures} == {TRACEPARENT.split("-")[1]}
    assert all(re.fullmatch("[0-9a-f]{16}", event["span_id"]) for event in failures)
    assert all("UndefinedColumnError" in event["exception"] for event in failures)
