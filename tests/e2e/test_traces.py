"""One trace from a producer's Kafka header through the ingester and a question to the api."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.collector import Collector, ReceivedSpan
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.transactions import scalar

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
MODEL = "people-detector"
# Nothing of these may be in any span: an id, metadata, a filter's value, a token, a secret key.
VALUES = ("inference-3", "camera-1", "471147114711", "token-of-this-test", "inference-store-tests")
# Client-chosen names may: that of the topic and the bucket's are the operator's.


async def count_stored(engine: AsyncEngine) -> Any:
    return await scalar(engine, "SELECT count(*) FROM inference")


async def publish(producer: Producer, *, sampled: bool = True) -> None:
    captures = [capture(number) for number in range(5)]
    await producer.put_all(captures)
    header = TRACEPARENT if sampled else TRACEPARENT[:-2] + "00"
    for captured in captures:
        await producer.publish(captured.event, headers=[("traceparent", header.encode())])


async def ask(api: str, method: str, path: str, body: Any = None) -> int:
    headers = {"traceparent": TRACEPARENT, "Authorization": "Bearer token-of-this-test"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, f"{api}/v1{path}", json=body) as answer,
    ):
        await answer.read()
        return answer.status


async def test_spans_of_all_services_join(
    service_environment: MakeEnvironment, topic: MakeTopic, engine: AsyncEngine, tmp_path: Path
) -> None:
    name, port = topic(1), free_port()
    environment = service_environment(
        KAFKA_TOPIC=name, API_PORT=str(port), API_TOKEN="token-of-this-test"
    )
    async with Collector() as collector:
        environment |= collector.environment()
        async with AsyncExitStack() as stopped:
            for service_name in ("ingester", "api", "retention"):
                service = Service(service_name, environment, tmp_path)
                stopped.push_async_callback(asyncio.to_thread, service.stop)
                await asyncio.to_thread(service.wait_ready)
            async with Producer(environment, name) as producer:
                await publish(producer)
            await until(lambda: count_stored(engine), lambda count: count == 5)
            api = f"http://127.0.0.1:{port}"
            key = {"key": "frame_number", "type": "int", "operator": "lt", "value": 471147114711}
            question = {"metadata_filter": [key]}
            assert await ask(api, "POST", f"/models/{MODEL}/inferences/query", question) == 200
            assert await ask(api, "GET", f"/models/{MODEL}/inferences/no-such-id") == 404
            assert await ask(api, "DELETE", f"/models/{MODEL}/inferences/inference-3") == 202
            await until(lambda: count_stored(engine), lambda count: count == 4)
            # Before they end: at their end they send what they have for three seconds alone.
            for check in (partial(check_ingester_spans, topic=name), *OTHER_CHECKS):
                await until(partial(find_fault, check, collector), lambda fault: fault is None)
        check_nothing_private(collector)


async def find_fault(check: Callable[[Collector], None], collector: Collector) -> str | None:
    """Return why the spans that came do not pass a check yet."""
    try:
        check(collector)
    except (AssertionError, ValueError) as exc:
        return str(exc)
    return None


def check_ingester_spans(collector: Collector, topic: str) -> None:
    batches = [
        consumer
        for consumer in collector.find_spans(f"process {topic}")
        if (TRACE, PARENT) in consumer.links
    ]
    assert batches, [span.name for span in collector.spans]
    batch = batches[0]
    assert (batch.service, batch.kind) == ("inference-store-ingester", 5)  # CONSUMER
    assert batch.attributes["messaging.system"] == "kafka"
    assert batch.attributes["messaging.batch.message_count"] >= 1
    names = {span.name for span in collector.find_descendants(batch)}
    assert {"decode", "look_up", "fetch", "parse", "prepare", "transaction", "books"} <= names
    assert "COPY staged" in names
    statements = [
        statement
        for statement in collector.find_descendants(batch)
        if statement.attributes.get("db.collection.name") == "kafka_partition"
    ]
    assert {statement.attributes["db.system.name"] for statement in statements} == {"postgresql"}
    assert {statement.kind for statement in statements} == {3}  # CLIENT


def check_api_spans(collector: Collector) -> None:
    (request,) = collector.find_spans("POST /v1/models/{model_id}/inferences/query")
    assert (request.service, request.kind) == ("inference-store-api", 2)  # SERVER
    assert (request.trace, request.parent) == (TRACE, PARENT)
    assert request.attributes["http.route"] == "/v1/models/{model_id}/inferences/query"
    assert request.attributes["http.response.status_code"] == 200
    below = collector.find_descendants(request)
    (query,) = [span for span in below if span.name == "query page"]
    assert query.attributes["inference_store.query.form"] == "metadata"
    assert [span for span in collector.find_descendants(query) if span.name.startswith("SELECT")]
    (missing,) = collector.find_spans("GET /v1/models/{model_id}/inferences/{inference_id}")
    assert missing.attributes["http.response.status_code"] == 404
    assert not missing.failed  # the caller's mistake, not ours


def check_retention_spans(collector: Collector) -> None:
    erasures = [
        erasure
        for erasure in collector.find_spans("erasure")
        if collector.find_descendants(erasure)
    ]
    assert {erasure.service for erasure in erasures} == {"inference-store-retention"}
    names = {span.name for erasure in erasures for span in collector.find_descendants(erasure)}
    assert {"claim", "delete", "verify", "forget"} <= names


OTHER_CHECKS = (check_api_spans, check_retention_spans)


def check_nothing_private(collector: Collector) -> None:
    text_of_spans = repr([(span.name, span.attributes) for span in collector.spans])
    assert not [value for value in VALUES if value in text_of_spans]
    # No exception is recorded: its text may hold anything.
    assert not [span for span in collector.spans if span.events]


async def test_unsampled_traces_are_not_linked_and_custom_names_are_kept(
    service_environment: MakeEnvironment, topic: MakeTopic, engine: AsyncEngine, tmp_path: Path
) -> None:
    name = topic(1)
    environment = service_environment(KAFKA_TOPIC=name)
    async with Collector() as collector:
        environment |= collector.environment() | {"OTEL_SERVICE_NAME": "my-own-name"}
        service = await asyncio.to_thread(Service("ingester", environment, tmp_path).wait_ready)
        async with Producer(environment, name) as producer:
            await publish(producer, sampled=False)
            await producer.publish(b"{}", headers=[("traceparent", b"\xff not one")])
        await until(lambda: count_stored(engine), lambda count: count == 5)
        await until(partial(find_spans, collector, f"process {name}"), bool)
        await asyncio.to_thread(service.stop)
        assert not [span for span in collector.spans if span.links]
        assert {span.service for span in collector.spans} == {"my-own-name"}


async def find_spans(collector: Collector, name: str) -> Sequence[ReceivedSpan]:
    return collector.find_spans(name)


async def count_requests(collector: Collector) -> int:
    return collector.requests


async def test_a_collector_that_hangs_harms_nothing(
    service_environment: MakeEnvironment, topic: MakeTopic, engine: AsyncEngine, tmp_path: Path
) -> None:
    name = topic(1)
    environment = service_environment(KAFKA_TOPIC=name)
    async with Collector(hang_seconds=3600) as hanging:
        environment |= hanging.environment()
        service = await asyncio.to_thread(Service("ingester", environment, tmp_path).wait_ready)
        async with Producer(environment, name) as producer:
            await producer.produce(*(capture(number) for number in range(300)))
        await until(lambda: count_stored(engine), lambda count: count == 300)
        await asyncio.to_thread(service.wait_ready)
        await until(partial(count_requests, hanging), bool)
        code = await asyncio.to_thread(service.process.stop)
        assert code == 0, "it did not end by itself"
        # A line now and then, not one a batch.
        assert service.text.count("opentelemetry") + service.text.count("xport") < 20
