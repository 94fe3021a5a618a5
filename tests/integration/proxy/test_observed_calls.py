"""Calls through real ports are counted by outcome, and traced below the span of the caller."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession, web

from inference_store.grpc_messages import message
from inference_store.platform.metrics import SHOWN
from tests.collector import Collector, ReceivedSpan
from tests.fake_captures import FakeCaptures
from tests.polling import until
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as entry
from tests.servers.ports import free_port

from .grpc_upstream import (
    HANG_SECONDS,
    INFER,
    STREAM,
    UPSTREAM,
    V2,
    ProxySetup,
    begin_call,
    call_stream,
    call_unary,
    echo,
)
from .rest_server import (
    DEADLINE,
    encode_request,
    hang,
    proxy,
    send_raw,
    start_line,
    upstream,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
REQUEST = message("inference.ModelInferRequest")(model_name="secret-model").SerializeToString()


def count_calls(protocol: str, upstream: str) -> Counter[str]:
    name = "inference_store_proxy_call_seconds_count"
    labels = {"protocol": protocol, "upstream": upstream}
    read, counts = SHOWN["proxy"].get_sample_value, Counter[str]()
    for outcome in ("ok", "refused", "failed", "gone"):
        counts[outcome] = int(read(name, labels | {"outcome": outcome}) or 0)
    return counts


def count_in_progress(transport: str) -> float:
    name = "inference_store_proxy_calls_in_progress"
    return SHOWN["proxy"].get_sample_value(name, {"transport": transport}) or 0


@pytest.fixture(autouse=True)
def check_none_in_progress() -> Iterator[None]:
    before = count_in_progress("rest"), count_in_progress("grpc")
    yield
    assert (count_in_progress("rest"), count_in_progress("grpc")) == before


class Counted:
    """The calls of a test, by outcome: captured ones, and those that only pass."""

    def __init__(self, protocol: str, upstream: str) -> None:
        self._keys = (protocol, upstream), ("none", upstream)
        self._before = [count_calls(*key) for key in self._keys]

    def since(self) -> list[Counter[str]]:
        pairs = zip(self._keys, self._before, strict=True)
        return [count_calls(*key) - before for key, before in pairs]


async def test_counts_rest_calls_by_outcome() -> None:
    reached = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert count_in_progress("rest") == 1
        status = request.path.split("/")[3]
        if status == "hang":
            reached.set()
            return await hang(request)
        return web.Response(status=int(status))

    counted, captures = Counted("v2", "one"), FakeCaptures()
    async with start_line(answer, captures) as line, ClientSession() as session:
        url = f"http://127.0.0.1:{line.port}/v2/models"
        for status in (200, 404, 422, 500):
            async with session.post(f"{url}/{status}/infer", data=b"{}") as response:
                assert response.status == status
            async with session.get(f"{url}/{status}/ready") as response:
                assert response.status == status
        assert b"400" in await send_raw(line.port, encode_request("GET", "*@x"))
        asking = asyncio.create_task(session.post(f"{url}/hang/infer"))
        await asyncio.wait_for(reached.wait(), DEADLINE)
        asking.cancel()
        for _ in range(5):
            await captures.exchange()
    assert counted.since() == [
        {"ok": 1, "refused": 2, "failed": 1, "gone": 1},
        {"ok": 1, "refused": 3, "failed": 1},
    ]
    async with proxy(free_port()) as at:
        answer_ = await send_raw(at, encode_request("POST", "/v2/models/m/infer"))
    assert answer_.startswith(b"HTTP/1.1 502")
    assert counted.since()[0]["failed"] == 2


async def test_counts_grpc_calls_by_outcome(setup: ProxySetup) -> None:
    """One of each outcome, one that is only passed on, and a stream."""
    reached = asyncio.Event()

    async def leave(_: Any) -> None:
        reached.set()
        await asyncio.sleep(HANG_SECONDS)

    def ending(code: grpc.StatusCode) -> Any:
        async def end(context: Any) -> None:
            await context.abort(code, "wrong shape")

        return end

    counted, behaviours = Counted("v2-grpc", UPSTREAM), setup.upstream.behaviours
    behaviours |= {INFER: echo, STREAM: echo, V2 + "ModelReady": echo}
    await call_unary(setup.proxied, INFER, REQUEST)
    await call_unary(setup.proxied, V2 + "ModelReady", REQUEST)
    await call_stream(setup.at[1], STREAM, [REQUEST])
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL):
        behaviours[INFER] = ending(code)
        assert (await call_unary(setup.proxied, INFER, REQUEST)).code is code
    behaviours[INFER] = leave
    call = begin_call(setup.proxied, INFER, REQUEST)
    await asyncio.wait_for(reached.wait(), DEADLINE)
    call.cancel()
    exchanges = [await setup.captures.exchange() for _ in range(5)]
    failed = [each for each in exchanges if each.grpc_code in (3, 13)]
    ends = [(each.error, each.response.parts, each.responded_at) for each in failed]
    assert ends == [("wrong shape", [], None)] * 2
    assert all(each.finished_at is not None for each in exchanges)
    assert counted.since() == [{"ok": 2, "refused": 1, "failed": 1, "gone": 1}, {"ok": 1}]


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


async def test_traces_each_captured_call_below_the_span_of_the_caller(
    setup: ProxySetup, tmp_path: Path
) -> None:
    """Over REST and gRPC; the model server gets the trace context of the caller unchanged."""
    contexts: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        contexts.append(request.headers.get("traceparent"))
        return web.json_response({}, status=500 if "broken" in request.path else 200)

    async def answer_grpc(context: Any) -> None:
        contexts.append(dict(context.invocation_metadata()).get("traceparent"))
        await echo(context)

    async with Collector() as collector, upstream(answer) as port:
        setup.upstream.behaviours[INFER] = answer_grpc
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
    assert [span.failed for span in (well, broken, over_grpc)] == [False, True, False]
    assert well.attributes["http.response.status_code"] == 200
    assert broken.attributes["error.type"] == "500"
    expected = {
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
        "inference_store.upstream": "mine",
    }
    assert over_grpc.attributes.items() >= expected.items()
