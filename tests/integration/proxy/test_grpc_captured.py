"""Calls over gRPC: what is captured, how they are routed, and what is refused."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import grpc
import pytest

from inference_store.grpc_messages import message
from inference_store.proxy.capture import ID_HEADER
from inference_store.proxy.exchange import header
from inference_store.proxy.grpc import Calls
from inference_store.proxy.protocols import PROTOCOLS, Call
from tests.integration.proxy.grpc_upstream import (
    INFER,
    STREAM,
    V2,
    call_stream,
    call_unary,
    open_stream,
    start_proxy,
)

REQUEST = message("inference.ModelInferRequest")(model_name="digits", model_version="3")
REQUEST_BYTES = REQUEST.SerializeToString()
SHUTDOWN, STATUS, RUN = (f"/ModzyModel/{name}" for name in ("Shutdown", "Status", "Run"))


async def answer(context: Any) -> None:
    request = await context.read()
    await context.send_initial_metadata((("x-first", "1"),))
    await context.write(request * 2)
    context.set_trailing_metadata((("x-last-bin", b"\0\xff"),))


async def test_captures_the_whole_exchange() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours[INFER] = answer
        before = datetime.now(UTC)
        metadata = (("traceparent", "00-0-0-00"), ("x-a-bin", b"\0\1"))
        await call_unary(setup.proxied, INFER, REQUEST_BYTES, metadata=metadata)
        exchange = await setup.captures.exchange()
    _, call, _, model = setup.captures.finished[0]
    assert (call.protocol.name, model) == ("v2-grpc", "digits")
    assert (exchange.transport, exchange.method, exchange.path) == ("grpc", INFER, INFER)
    assert header(exchange.request_headers, "traceparent") == "00-0-0-00"
    assert header(exchange.request_headers, "x-a-bin") == "AAE"
    assert "grpc" in str(header(exchange.request_headers, "user-agent"))
    assert exchange.request.parts == [REQUEST_BYTES]
    assert exchange.response.parts == [REQUEST_BYTES * 2]
    assert exchange.request.whole
    assert exchange.response.size == 2 * len(REQUEST_BYTES)
    assert header(exchange.response_headers, "x-first") == "1"
    assert header(exchange.response_trailers, "x-last-bin") == "AP8"
    assert (exchange.grpc_code, exchange.error, exchange.http_status) == (0, None, None)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    times = [before, *times, exchange.finished_at, datetime.now(UTC)]
    assert times == sorted(times)


async def test_a_stream_is_one_exchange_with_its_messages_in_order() -> None:
    async def twice(context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request + b"1")
            await context.write(request + b"2")

    async with start_proxy() as setup:
        setup.upstream.behaviours[STREAM] = twice
        await call_stream(setup.at[1], STREAM, [b"a", b"b"])
        exchange = await setup.captures.exchange()
    assert exchange.request.parts == [b"a", b"b"]
    assert exchange.response.parts == [b"a1", b"a2", b"b1", b"b2"]
    assert len(setup.captures.finished) == 1


async def test_captures_an_error_with_its_message() -> None:
    async def fail(context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with start_proxy() as setup:
        setup.upstream.behaviours[INFER] = fail
        await call_unary(setup.proxied, INFER, REQUEST_BYTES)
        exchange = await setup.captures.exchange()
    assert (exchange.grpc_code, exchange.error) == (3, "wrong shape")
    assert (exchange.response.parts, exchange.responded_at) == ([], None)
    assert exchange.finished_at is not None


async def test_bodies_over_the_budget_pass_uncaptured() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours |= {INFER: answer, STREAM: answer}
        setup.captures.room = 2 * len(REQUEST_BYTES)
        result = await call_unary(setup.proxied, INFER, REQUEST_BYTES)
        assert result.messages == [REQUEST_BYTES * 2]
        exchange = await setup.captures.exchange()
        assert exchange.request.bytes == REQUEST_BYTES
        response = exchange.response
        assert (response.parts, response.size, response.whole) == (
            [],
            2 * len(REQUEST_BYTES),
            False,
        )
        setup.captures.room = 0
        assert (await call_unary(setup.proxied, INFER, REQUEST_BYTES)).messages == [
            REQUEST_BYTES * 2
        ]
        assert (await call_stream(setup.at[1], STREAM, [REQUEST_BYTES])).messages == [
            REQUEST_BYTES * 2
        ]
        assert setup.captures.begun == 1
        setup.captures.room = len(REQUEST_BYTES)
        assert (await call_stream(setup.at[1], STREAM, [REQUEST_BYTES] * 3)).messages == [
            REQUEST_BYTES * 2
        ]
        exchange = await setup.captures.exchange()
        assert (exchange.method, exchange.response.whole) == (STREAM, False)
        assert exchange.request.parts == [REQUEST_BYTES]
        assert len(setup.captures.finished) == 2


async def test_body_over_the_cap_passes_uncaptured() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours |= {INFER: answer, STREAM: answer}
        setup.captures.most = len(REQUEST_BYTES) - 1
        result = await call_unary(setup.proxied, INFER, REQUEST_BYTES)
        assert result.messages == [REQUEST_BYTES * 2]
        request = (await setup.captures.exchange()).request
        assert (request.parts, request.size, request.whole) == ([], len(REQUEST_BYTES), False)
        await call_stream(setup.at[1], STREAM, [REQUEST_BYTES, b"x"])
        exchange = await setup.captures.exchange()
        assert (exchange.request.parts, exchange.request.whole) == ([], False)
        assert exchange.response.parts == [REQUEST_BYTES * 2]


async def test_other_methods_are_not_captured() -> None:
    async with start_proxy() as setup:
        path = V2 + "ModelReady"
        setup.upstream.behaviours[path] = answer
        await call_unary(setup.proxied, path, b"")
    assert setup.captures.begun == 0


async def test_routes_calls_by_model() -> None:
    async with start_proxy(by_model=True) as setup:
        setup.upstream.behaviours |= {INFER: answer, STREAM: answer}
        await call_unary(setup.proxied, INFER, REQUEST_BYTES)
        await call_stream(setup.at[1], STREAM, [REQUEST_BYTES])
        await call_stream(setup.at[1], STREAM, [])
        await call_unary(setup.proxied, V2 + "ServerLive", b"")
        load = message("inference.RepositoryModelLoadRequest")(model_name="later")
        await call_unary(setup.proxied, V2 + "RepositoryModelLoad", load.SerializeToString())
    assert setup.routed == [
        (INFER, "digits", "3"),
        (STREAM, "digits", "3"),
        (STREAM, "digits", "3"),
        (STREAM, None, None),
        (V2 + "ServerLive", None, None),
        (V2 + "RepositoryModelLoad", "later", None),
    ]


async def test_stream_has_the_model_of_its_first_message() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours[STREAM] = answer
        call = open_stream(setup.proxied, STREAM)
        await asyncio.sleep(0.1)
        assert setup.captures.begun == 0
        await call.write(REQUEST_BYTES)
        await call.done_writing()
        assert await call.read() == REQUEST_BYTES * 2
        assert await call.read() is grpc.aio.EOF
        await setup.captures.exchange()
    assert setup.routed == [(STREAM, None, None), (STREAM, "digits", "3")]
    assert setup.captures.finished[0][3] == "digits"


async def test_stream_without_messages_is_not_captured() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours[STREAM] = answer
        await call_stream(setup.at[1], STREAM, [])
    assert setup.captures.begun == 0


async def test_captures_a_stream_to_an_unavailable_upstream() -> None:
    async with start_proxy(calls=Calls(first_message_seconds=60)) as setup:
        await setup.upstream_server.stop(None)
        result = await call_stream(setup.at[1], STREAM, [REQUEST_BYTES])
        assert result.code is grpc.StatusCode.UNAVAILABLE
        exchange = await setup.captures.exchange()
    assert (exchange.grpc_code, exchange.request.parts) == (14, [REQUEST_BYTES])


async def test_unknown_model_is_not_found() -> None:
    async with start_proxy(by_model=True) as setup:
        request = message("inference.ModelInferRequest")(model_name="nobodys").SerializeToString()
        assert (await call_unary(setup.proxied, INFER, request)).code is grpc.StatusCode.NOT_FOUND
        assert (await call_stream(setup.at[1], STREAM, [request])).code is grpc.StatusCode.NOT_FOUND


async def test_shutdown_does_not_pass() -> None:
    async with start_proxy() as setup:
        setup.upstream.behaviours[SHUTDOWN] = answer
        result = await call_unary(setup.proxied, SHUTDOWN, b"")
        assert result.code is grpc.StatusCode.PERMISSION_DENIED
        assert setup.upstream.metadata == []


async def test_allowed_shutdown_passes_and_lost_connection_is_success() -> None:
    async with start_proxy() as setup:
        setup.onward["allow_shutdown"] = True
        setup.upstream.behaviours[SHUTDOWN] = answer
        assert (await call_unary(setup.proxied, SHUTDOWN, b"x")).messages == [b"xx"]

        async def drop(_: Any) -> None:
            stopping.append(asyncio.create_task(setup.upstream_server.stop(None)))
            await asyncio.sleep(30)

        stopping: list[Any] = []
        setup.upstream.behaviours[SHUTDOWN] = drop
        result = await call_unary(setup.proxied, SHUTDOWN, b"")
        assert result.code is grpc.StatusCode.OK
        assert message("ShutdownResponse").FromString(result.messages[0]).status_code == 202
        await asyncio.gather(*stopping)


async def test_shutdown_of_an_unavailable_upstream_fails() -> None:
    async with start_proxy() as setup:
        setup.onward["allow_shutdown"] = True
        await setup.upstream_server.stop(None)
        result = await call_unary(setup.proxied, SHUTDOWN, b"")
        assert result.code is grpc.StatusCode.UNAVAILABLE


async def test_run_has_the_version_of_the_last_status() -> None:
    protocol = PROTOCOLS["omi"]
    info = {"model_name": "Counter", "model_version": "1.2.0"}
    status = message("StatusResponse")(status_code=200, model_info=info).SerializeToString()

    async def answer_status(context: Any) -> None:
        await context.read()
        await context.write(status)

    async with start_proxy() as setup:
        setup.onward["call"] = Call(protocol, "infer")
        setup.upstream.behaviours |= {RUN: answer, STATUS: answer_status}
        for path in (RUN, STATUS, RUN):
            await call_unary(setup.proxied, path, b"")
            await setup.captures.exchange()
    versions = [call.version for _, call, _, _ in setup.captures.finished]
    assert versions == [None, None, "1.2.0"]


async def test_reconnects_soon_to_a_restarted_upstream() -> None:
    async with start_proxy() as setup:
        port = int(setup.at[0].rpartition(":")[2])
        await setup.upstream_server.stop(None)
        assert (await call_unary(setup.proxied, INFER, b"")).code is grpc.StatusCode.UNAVAILABLE
        again = grpc.aio.server(handlers=(setup.upstream,))
        again.add_insecure_port(f"127.0.0.1:{port}")
        setup.upstream.behaviours[INFER] = answer
        await again.start()
        before, code = time.monotonic(), None
        while code is not grpc.StatusCode.OK and time.monotonic() - before < 60:
            code = (await call_unary(setup.proxied, INFER, b"")).code
            await asyncio.sleep(0.02)
        await again.stop(None)
        assert code is grpc.StatusCode.OK
        assert time.monotonic() - before < 20


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize("fails", [False, True])
async def test_trailer_has_the_given_or_generated_id(path: str, fails: bool) -> None:
    async def end(context: Any) -> None:
        await answer(context)
        if fails:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with start_proxy() as setup:
        setup.upstream.behaviours |= {INFER: end, STREAM: end}
        metadata = (("x-request-id", "r-7"),)
        with_id = await call_stream(setup.at[1], path, [REQUEST_BYTES], metadata=metadata)
        exchange = await setup.captures.exchange()
        without_id = await call_stream(setup.at[1], path, [REQUEST_BYTES])
        another = await setup.captures.exchange()
        unknown = await call_unary(setup.proxied, V2 + "ServerLive", b"")
    assert header(exchange.response_headers, ID_HEADER) == with_id.id
    assert header(another.response_headers, ID_HEADER) == without_id.id
    assert with_id.id == "r-7"
    assert UUID(without_id.id)
    assert unknown.id is None
