"""Calls through real ports are counted by outcome, and traced below the span of the caller."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession, web

from inference_store.grpc_messages import message
from inference_store.platform.metrics import SHOWN
from tests.collector import Collector, ReceivedSpan
from tests.polling import until
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as entry
from tests.servers.ports import free_port

from .grpc_upstream import (
    INFER,
    STREAM,
    V2,
    ProxySetup,
    begin_call,
    call_stream,
    call_unary,
    start_proxy,
)
from .rest_server import DEADLINE, FakeCaptures, proxy, send_raw, upstream

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
REQUEST = message("inference.ModelInferRequest")(model_name="secret-model").SerializeToString()
OUTCOMES = ("ok", "refused", "failed", "gone")


def count_calls(protocol: str, upstream: str) -> dict[str, int]:
    """Return the number of calls so far by outcome."""
    name = "inference_store_proxy_call_seconds_count"
    labels = {"protocol": protocol, "upstream": upstream}
    values = {
        outcome: SHOWN["proxy"].get_sample_value(name, labels | {"outcome": outcome}) or 0
        for outcome in OUTCOMES
    }
    return {outcome: int(value) for outcome, value in values.items()}


def subtract_counts(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        outcome: after[outcome] - before[outcome]
        for outcome in OUTCOMES
        if after[outcome] != before[outcome]
    }


def count_in_progress(transport: str) -> float:
    name = "inference_store_proxy_calls_in_progress"
    return SHOWN["proxy"].get_sample_value(name, {"transport": transport}) or 0


@pytest.fixture(autouse=True)
def check_none_in_progress() -> Iterator[None]:
    before = count_in_progress("rest"), count_in_progress("grpc")
    yield
    assert (count_in_progress("rest"), count_in_progress("grpc")) == before


async def test_counts_rest_calls_by_outcome() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert count_in_progress("rest") == 1
        return web.Response(status=int(request.path.split("/")[3]))

    before, passed = count_calls("v2", "one"), count_calls("none", "one")
    async with (
        upstream(answer) as port,
        proxy(port, FakeCaptures()) as at,
        ClientSession() as session,
    ):
        for status in (200, 404, 422, 500):
            url = f"http://127.0.0.1:{at}/v2/models/{status}"
            async with session.post(f"{url}/infer", data=b"{}") as response:
                assert response.status == status
            async with session.get(f"{url}/ready") as response:
                assert response.status == status
        assert b"400" in await send_raw(
            at, b"GET *@x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
    assert subtract_counts(before, count_calls("v2", "one")) == {"ok": 1, "refused": 2, "failed": 1}
    assert subtract_counts(passed, count_calls("none", "one")) == {
        "ok": 1,
        "refused": 3,
        "failed": 1,
    }


async def test_distinguishes_lost_callers_from_unavailable_upstreams() -> None:
    reached = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.sleep(DEADLINE)
        raise AssertionError("nobody waits for so long")

    before, captures = count_calls("v2", "one"), FakeCaptures()
    async with upstream(hang) as port, proxy(port, captures) as at, ClientSession() as session:
        asking = asyncio.create_task(session.post(f"http://127.0.0.1:{at}/v2/models/m/infer"))
        await asyncio.wait_for(reached.wait(), DEADLINE)
        asking.cancel()
        await captures.wait_for_first()
    assert subtract_counts(before, count_calls("v2", "one")) == {"gone": 1}
    async with (
        proxy(free_port(), FakeCaptures()) as at,
        ClientSession() as session,
        session.post(f"http://127.0.0.1:{at}/v2/models/m/infer") as response,
    ):
        assert response.status == 502
    assert subtract_counts(before, count_calls("v2", "one")) == {"gone": 1, "failed": 1}


async def _call_with_each_outcome(setup: ProxySetup) -> None:
    """Make a call of each outcome, one that is only passed on, and a stream."""

    async def echo(context: Any) -> None:
        await context.write(await context.read())

    def ending(code: grpc.StatusCode) -> Any:
        async def end(context: Any) -> None:
            await context.abort(code)

        return end

    behaviours = setup.upstream.behaviours
    behaviours |= {INFER: echo, STREAM: echo, V2 + "ModelReady": echo}
    await call_unary(setup.proxied, INFER, REQUEST)
    await call_unary(setup.proxied, V2 + "ModelReady", REQUEST)
    await call_stream(setup.at[1], STREAM, [REQUEST])
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL):
        behaviours[INFER] = ending(code)
        assert (await call_unary(setup.proxied, INFER, REQUEST)).code is code
    for _ in range(4):
        await setup.captures.exchange()


async def test_counts_grpc_calls_by_outcome() -> None:
    before, passed = count_calls("v2-grpc", "two"), count_calls("none", "two")
    async with start_proxy() as setup:
        setup.onward["upstream"] = "two"
        await _call_with_each_outcome(setup)
    assert subtract_counts(before, count_calls("v2-grpc", "two")) == {
        "ok": 2,
        "refused": 1,
        "failed": 1,
    }
    assert subtract_counts(passed, count_calls("none", "two")) == {"ok": 1}


async def test_grpc_caller_that_leaves_is_gone() -> None:
    reached = asyncio.Event()

    async def hang(_: Any) -> None:
        reached.set()
        await asyncio.sleep(DEADLINE)

    before = count_calls("v2-grpc", "two")
    async with start_proxy() as setup:
        setup.onward["upstream"] = "two"
        setup.upstream.behaviours[INFER] = hang
        call = begin_call(setup.proxied, INFER, REQUEST)
        await asyncio.wait_for(reached.wait(), DEADLINE)
        call.cancel()
        await setup.captures.exchange()
    assert subtract_counts(before, count_calls("v2-grpc", "two")) == {"gone": 1}


def _settings(collector: Collector) -> dict[str, str]:
    """Return the environment of a proxy whose object store and Kafka are unavailable."""
    nowhere = f"127.0.0.1:{free_port()}"
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": nowhere,
        "S3_ENDPOINT": f"http://{nowhere}",
        "S3_BUCKET": "none",
        "PROXY_GRACE_SECONDS": "2",
    }
    environment = {f"INFERENCE_STORE_{name}": value for name, value in settings.items()}
    return environment | collector.environment()


async def test_traces_each_captured_call_below_the_span_of_the_caller(tmp_path: Path) -> None:
    """Over REST and gRPC; the model server gets the trace context of the caller unchanged."""
    contexts: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        contexts.append(request.headers.get("traceparent"))
        return web.json_response({}, status=500 if "broken" in request.path else 200)

    async def echo(context: Any) -> None:
        contexts.append(dict(context.invocation_metadata()).get("traceparent"))
        await context.write(await context.read())

    async with Collector() as collector, upstream(answer) as port, start_proxy() as setup:
        setup.upstream.behaviours[INFER] = echo
        url = f"http://127.0.0.1:{port}"
        behind = entry("mine", "v2", "v2-grpc", url=url, grpc=setup.at[0])
        running = await asyncio.to_thread(Proxy, _settings(collector), tmp_path, [behind])
        try:
            await asyncio.to_thread(running.wait_ready)
            await _make_calls(running)
            await until(lambda: _list_spans(collector), lambda spans: len(spans) >= 3)
        finally:
            await asyncio.to_thread(running.stop)
    assert contexts == [TRACEPARENT] * 4
    _check_spans(collector)


async def _list_spans(collector: Collector) -> list[ReceivedSpan]:
    return collector.spans


async def _make_calls(running: Proxy) -> None:
    headers = {"traceparent": TRACEPARENT, "Authorization": "Bearer secret"}
    models = f"{running.url}/v2/models/secret-model"
    async with ClientSession(headers=headers) as session:
        for url in (f"{models}/infer?secret=1", f"{models}-broken/infer"):
            async with session.post(url, data=json.dumps({"id": "secret"})) as answered:
                await answered.read()
        async with session.get(f"{models}/ready") as answered:
            await answered.read()
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        await call_unary(channel, INFER, REQUEST, metadata=(("traceparent", TRACEPARENT),))


def _check_spans(collector: Collector) -> None:
    assert {(span.trace, span.parent) for span in collector.spans} == {(TRACE, PARENT)}
    assert {span.service for span in collector.spans} == {"inference-store-proxy"}
    assert {span.kind for span in collector.spans} == {2}  # SERVER
    assert "secret" not in repr([(span.name, span.attributes) for span in collector.spans])
    well, broken = collector.find_spans("v2 infer")
    (over_grpc,) = collector.find_spans("v2-grpc infer")
    assert len(collector.spans) == 3  # none of calls that are only passed on
    assert well.attributes["http.response.status_code"] == 200
    assert (broken.attributes["error.type"], broken.failed) == ("500", True)
    _check_grpc_span(over_grpc)
    assert not well.failed


def _check_grpc_span(span: ReceivedSpan) -> None:
    assert span.attributes["rpc.service"] == "inference.GRPCInferenceService"
    assert span.attributes["rpc.method"] == "ModelInfer"
    assert span.attributes["rpc.grpc.status_code"] == 0
    assert span.attributes["inference_store.upstream"] == "mine"
    assert not span.failed
