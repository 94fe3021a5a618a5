"""Calls through real ports are counted by their outcome, and traced below their caller's span."""

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
from tests.collector import Collector, Seen
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as entry
from tests.servers.ports import free_port

from .grpc_upstream import INFER, STREAM, V2, Line, ask, line, stream, unary
from .rest_server import DEADLINE, Kept, proxy, raw, upstream

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
REQUEST = message("inference.ModelInferRequest")(model_name="secret-model").SerializeToString()
OUTCOMES = ("ok", "refused", "failed", "gone")


def counted(protocol: str, upstream: str) -> dict[str, int]:
    """Calls so far by their outcome."""
    name = "inference_store_proxy_call_seconds_count"
    labels = {"protocol": protocol, "upstream": upstream}
    found = {
        each: SHOWN["proxy"].get_sample_value(name, labels | {"outcome": each}) or 0
        for each in OUTCOMES
    }
    return {each: int(value) for each, value in found.items()}


def new(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {each: after[each] - before[each] for each in OUTCOMES if after[each] != before[each]}


def under_way(transport: str) -> float:
    name = "inference_store_proxy_calls_in_progress"
    return SHOWN["proxy"].get_sample_value(name, {"transport": transport}) or 0


@pytest.fixture(autouse=True)
def _none_is_left_under_way() -> Iterator[None]:
    before = under_way("rest"), under_way("grpc")
    yield
    assert (under_way("rest"), under_way("grpc")) == before


async def test_a_call_over_rest_is_counted_by_its_outcome() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert under_way("rest") == 1
        return web.Response(status=int(request.path.split("/")[3]))

    before, passed = counted("v2", "one"), counted("none", "one")
    async with upstream(answer) as port, proxy(port, Kept()) as at, ClientSession() as session:
        for status in (200, 404, 422, 500):
            url = f"http://127.0.0.1:{at}/v2/models/{status}"
            async with session.post(f"{url}/infer", data=b"{}") as told:
                assert told.status == status
            async with session.get(f"{url}/ready") as told:
                assert told.status == status
        assert b"400" in await raw(at, b"GET *@x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert new(before, counted("v2", "one")) == {"ok": 1, "refused": 2, "failed": 1}
    assert new(passed, counted("none", "one")) == {"ok": 1, "refused": 3, "failed": 1}


async def test_a_caller_that_leaves_and_an_upstream_that_is_away_are_told_apart() -> None:
    reached = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.sleep(DEADLINE)
        raise AssertionError("nobody waits for so long")

    before, kept = counted("v2", "one"), Kept()
    async with upstream(hang) as port, proxy(port, kept) as at, ClientSession() as session:
        asking = asyncio.create_task(session.post(f"http://127.0.0.1:{at}/v2/models/m/infer"))
        await asyncio.wait_for(reached.wait(), DEADLINE)
        asking.cancel()
        await kept.first()
    assert new(before, counted("v2", "one")) == {"gone": 1}
    async with (
        proxy(free_port(), Kept()) as at,
        ClientSession() as session,
        session.post(f"http://127.0.0.1:{at}/v2/models/m/infer") as told,
    ):
        assert told.status == 502
    assert new(before, counted("v2", "one")) == {"gone": 1, "failed": 1}


async def _grpc_ends(started: Line) -> None:
    """A call of each outcome, one that passes, and a stream."""

    async def echo(context: Any) -> None:
        await context.write(await context.read())

    def ending(code: grpc.StatusCode) -> Any:
        async def end(context: Any) -> None:
            await context.abort(code)

        return end

    behaviours = started.upstream.behaviours
    behaviours |= {INFER: echo, STREAM: echo, V2 + "ModelReady": echo}
    await unary(started.proxied, INFER, REQUEST)
    await unary(started.proxied, V2 + "ModelReady", REQUEST)
    await stream(started.at[1], STREAM, [REQUEST])
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL):
        behaviours[INFER] = ending(code)
        assert (await unary(started.proxied, INFER, REQUEST)).code is code
    for _ in range(4):
        await started.captures.exchange()


async def test_a_call_over_grpc_is_counted_by_its_outcome() -> None:
    before, passed = counted("v2-grpc", "two"), counted("none", "two")
    async with line() as started:
        started.onward["upstream"] = "two"
        await _grpc_ends(started)
    assert new(before, counted("v2-grpc", "two")) == {"ok": 2, "refused": 1, "failed": 1}
    assert new(passed, counted("none", "two")) == {"ok": 1}


async def test_a_caller_over_grpc_that_leaves_is_gone() -> None:
    reached = asyncio.Event()

    async def hang(_: Any) -> None:
        reached.set()
        await asyncio.sleep(DEADLINE)

    before = counted("v2-grpc", "two")
    async with line() as started:
        started.onward["upstream"] = "two"
        started.upstream.behaviours[INFER] = hang
        call = ask(started.proxied, INFER, REQUEST)
        await asyncio.wait_for(reached.wait(), DEADLINE)
        call.cancel()
        await started.captures.exchange()
    assert new(before, counted("v2-grpc", "two")) == {"gone": 1}


def _settings(collector: Collector) -> dict[str, str]:
    """Of a proxy whose object store and Kafka are away."""
    nowhere = f"127.0.0.1:{free_port()}"
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": nowhere,
        "S3_ENDPOINT": f"http://{nowhere}",
        "S3_BUCKET": "none",
        "PROXY_GRACE_SECONDS": "2",
    }
    named = {f"INFERENCE_STORE_{name}": value for name, value in settings.items()}
    return named | collector.environment()


async def test_a_span_a_captured_call_below_the_callers(tmp_path: Path) -> None:
    """Both ways in; the model server is told the caller's own context, as it came."""
    told: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        told.append(request.headers.get("traceparent"))
        return web.json_response({}, status=500 if "broken" in request.path else 200)

    async def echo(context: Any) -> None:
        told.append(dict(context.invocation_metadata()).get("traceparent"))
        await context.write(await context.read())

    async with Collector() as collector, upstream(answer) as port, line() as started:
        started.upstream.behaviours[INFER] = echo
        url = f"http://127.0.0.1:{port}"
        behind = entry("mine", "v2", "v2-grpc", url=url, grpc=started.at[0])
        running = await asyncio.to_thread(Proxy, _settings(collector), tmp_path, [behind])
        try:
            await asyncio.to_thread(running.wait_ready)
            await _call(running)
        finally:
            await asyncio.to_thread(running.stop)
    assert told == [TRACEPARENT] * 4
    _the_spans(collector)


async def _call(running: Proxy) -> None:
    headers = {"traceparent": TRACEPARENT, "Authorization": "Bearer secret"}
    models = f"{running.url}/v2/models/secret-model"
    async with ClientSession(headers=headers) as session:
        for url in (f"{models}/infer?secret=1", f"{models}-broken/infer"):
            async with session.post(url, data=json.dumps({"id": "secret"})) as answered:
                await answered.read()
        async with session.get(f"{models}/ready") as answered:
            await answered.read()
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        await unary(channel, INFER, REQUEST, metadata=(("traceparent", TRACEPARENT),))


def _the_spans(collector: Collector) -> None:
    assert {(span.trace, span.parent) for span in collector.spans} == {(TRACE, PARENT)}
    assert {span.service for span in collector.spans} == {"inference-store-proxy"}
    assert {span.kind for span in collector.spans} == {2}  # SERVER
    assert "secret" not in repr([(span.name, span.attributes) for span in collector.spans])
    well, broken = collector.named("v2 infer")
    (over_grpc,) = collector.named("v2-grpc infer")
    assert len(collector.spans) == 3  # nothing of what only passed through
    assert well.attributes["http.response.status_code"] == 200
    assert (broken.attributes["error.type"], broken.failed) == ("500", True)
    _of_grpc(over_grpc)
    assert not well.failed


def _of_grpc(span: Seen) -> None:
    assert span.attributes["rpc.service"] == "inference.GRPCInferenceService"
    assert span.attributes["rpc.method"] == "ModelInfer"
    assert span.attributes["rpc.grpc.status_code"] == 0
    assert span.attributes["inference_store.upstream"] == "mine"
    assert not span.failed
