"""Calls over gRPC: what is captured, how they are routed, and what is refused."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import grpc

from inference_store.grpc_messages import message
from inference_store.proxy.exchange import header
from inference_store.proxy.protocols import PROTOCOLS, Call
from tests.polling import until

from .grpc_upstream import (
    HANG_SECONDS,
    INFER,
    STREAM,
    V2,
    ProxySetup,
    call_stream,
    call_unary,
    open_stream,
    start_proxy,
)

REQUEST = message("inference.ModelInferRequest")(model_name="digits", model_version="3")
REQUEST_BYTES = REQUEST.SerializeToString()
TWICE = [REQUEST_BYTES * 2]
SHUTDOWN, STATUS, RUN = (f"/ModzyModel/{name}" for name in ("Shutdown", "Status", "Run"))


async def answer(context: Any) -> None:
    request = await context.read()
    await context.send_initial_metadata((("x-first", "1"),))
    await context.write(request * 2)
    context.set_trailing_metadata((("x-last-bin", b"\0\xff"),))


async def test_captures_the_whole_exchange(setup: ProxySetup) -> None:
    setup.upstream.behaviours[INFER] = answer
    before = datetime.now(UTC)
    metadata = (("traceparent", "00-0-0-00"), ("x-a-bin", b"\0\1"), ("x-large", "x" * 5000))
    await call_unary(setup.proxied, INFER, REQUEST_BYTES, metadata=metadata)
    exchange = await setup.captures.exchange()
    _, route = setup.captures.finished[0]
    assert route.call is not None
    assert (route.call.protocol.name, route.model) == ("v2-grpc", "digits")
    assert (exchange.transport, exchange.method, exchange.path) == ("grpc", INFER, INFER)
    assert header(exchange.request_headers, "traceparent") == "00-0-0-00"
    assert header(exchange.request_headers, "x-a-bin") == "AAE"
    assert "grpc" in str(header(exchange.request_headers, "user-agent"))
    # the size of the metadata counts against the budget
    assert 5000 < setup.captures.heads[-1] < 7000
    assert exchange.request.parts == [REQUEST_BYTES]
    assert exchange.response.parts == TWICE
    assert exchange.request.whole
    assert exchange.response.size == 2 * len(REQUEST_BYTES)
    assert header(exchange.response_headers, "x-first") == "1"
    assert header(exchange.response_trailers, "x-last-bin") == "AP8"
    assert (exchange.grpc_code, exchange.error, exchange.http_status) == (0, None, None)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    times = [before, *times, exchange.finished_at, datetime.now(UTC)]
    assert times == sorted(times)


def make_streamed(name: str, *, is_last: bool | None = None) -> bytes:
    """Make a request, or an answer of MLServer, whose id is `name`."""
    made = message("inference.ModelInferRequest")(model_name="digits", id=name)
    if is_last is not None:
        made.parameters["triton_final_response"].bool_param = is_last
    return bytes(made.SerializeToString())


async def test_each_request_of_a_stream_is_an_exchange(setup: ProxySetup) -> None:
    """One that is complete is captured while the stream is open, whatever its end."""

    async def twice(context: Any) -> None:
        for name in "abc":
            assert await context.read() == make_streamed(name)
        for name, is_last in (("b", False), ("a", False), ("b", True), ("a", True)):
            await context.write(make_streamed(name, is_last=is_last))
        await asyncio.sleep(HANG_SECONDS)

    setup.upstream.behaviours[STREAM] = twice
    call = open_stream(setup.proxied, STREAM)
    for name in "abc":
        await call.write(make_streamed(name))
    answers = [await call.read() for _ in range(4)]
    captured = [await setup.captures.exchange() for _ in range(2)]
    for exchange, name in zip(captured, "ba", strict=True):
        parts = [make_streamed(name, is_last=is_last) for is_last in (False, True)]
        assert exchange.request.parts == [make_streamed(name)], name
        assert exchange.response.parts == [part for part in answers if part in parts] == parts
        assert (exchange.grpc_code, exchange.error) == (0, None), name
    call.cancel()
    cut_off = await setup.captures.exchange()
    assert cut_off.request.parts == [make_streamed("c")]
    assert (cut_off.grpc_code, cut_off.response.parts) == (1, [])
    assert [exchange.position for exchange in (*captured, cut_off)] == [1, 0, 2]
    assert len(setup.captures.finished) == 3


async def test_a_stream_of_an_unknown_protocol_is_one_exchange(setup: ProxySetup) -> None:
    async def twice(context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request + b"1")
            await context.write(request + b"2")

    setup.onward["call"] = Call(PROTOCOLS["raw-grpc"], "infer")
    for path in (STREAM, "/other.Service/Method"):
        setup.upstream.behaviours[path] = twice
        await call_stream(setup.at[1], path, [b"a", b"b"])
        exchange = await setup.captures.exchange()
        assert exchange.request.parts == [b"a", b"b"], path
        assert exchange.response.parts == [b"a1", b"a2", b"b1", b"b2"], path
    assert len(setup.captures.finished) == 2


async def test_bodies_over_the_budget_pass_uncaptured(setup: ProxySetup) -> None:
    setup.upstream.behaviours |= {INFER: answer, STREAM: answer}
    size = len(REQUEST_BYTES)
    setup.captures.room = 2 * size
    assert (await call_unary(setup.proxied, INFER, REQUEST_BYTES)).messages == TWICE
    exchange = await setup.captures.exchange()
    assert exchange.request.bytes == REQUEST_BYTES
    response = exchange.response
    assert (response.parts, response.size, response.whole) == ([], 2 * size, False)
    setup.captures.room = 0
    assert (await call_unary(setup.proxied, INFER, REQUEST_BYTES)).messages == TWICE
    assert (await call_stream(setup.at[1], STREAM, [REQUEST_BYTES])).messages == TWICE
    assert setup.captures.begun == 1
    setup.captures.room = size
    assert (await call_stream(setup.at[1], STREAM, [REQUEST_BYTES] * 3)).messages == TWICE
    exchange = await setup.captures.exchange()
    assert (exchange.method, exchange.response.whole) == (STREAM, False)
    assert exchange.request.parts == [REQUEST_BYTES]


async def test_body_over_the_cap_passes_uncaptured(setup: ProxySetup) -> None:
    setup.upstream.behaviours |= {INFER: answer, STREAM: answer}
    setup.captures.most = len(REQUEST_BYTES) - 1
    assert (await call_unary(setup.proxied, INFER, REQUEST_BYTES)).messages == TWICE
    request = (await setup.captures.exchange()).request
    assert (request.parts, request.size, request.whole) == ([], len(REQUEST_BYTES), False)
    await call_stream(setup.at[1], STREAM, [REQUEST_BYTES, b"x"])
    exchange = await setup.captures.exchange()
    assert (exchange.request.parts, exchange.request.whole) == ([], False)
    assert exchange.response.parts == TWICE


async def test_other_methods_and_empty_streams_are_not_captured(setup: ProxySetup) -> None:
    setup.upstream.behaviours |= {V2 + "ModelReady": answer, STREAM: answer}
    await call_unary(setup.proxied, V2 + "ModelReady", b"")
    await call_stream(setup.at[1], STREAM, [])
    assert setup.captures.begun == 0


async def test_routes_calls_by_model() -> None:
    unknown = message("inference.ModelInferRequest")(model_name="nobodys").SerializeToString()
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
        assert (await call_unary(setup.proxied, INFER, unknown)).code is grpc.StatusCode.NOT_FOUND
        refused = await call_stream(setup.at[1], STREAM, [unknown])
        assert refused.code is grpc.StatusCode.NOT_FOUND


async def test_stream_has_the_model_of_its_first_message(setup: ProxySetup) -> None:
    async def routed() -> list[Any]:
        return setup.routed

    setup.upstream.behaviours[STREAM] = answer
    call = open_stream(setup.proxied, STREAM)
    assert await until(routed, bool) == [(STREAM, None, None)]
    assert setup.captures.begun == 0
    await call.write(REQUEST_BYTES)
    await call.done_writing()
    assert await call.read() == REQUEST_BYTES * 2
    assert await call.read() is grpc.aio.EOF
    await setup.captures.exchange()
    assert setup.routed == [(STREAM, None, None), (STREAM, "digits", "3")]
    assert setup.captures.finished[0][1].model == "digits"


async def test_shutdown_passes_only_if_it_is_allowed(setup: ProxySetup) -> None:
    setup.upstream.behaviours[SHUTDOWN] = answer
    result = await call_unary(setup.proxied, SHUTDOWN, b"")
    assert result.code is grpc.StatusCode.PERMISSION_DENIED
    assert setup.upstream.metadata == []
    setup.onward["allow_shutdown"] = True
    assert (await call_unary(setup.proxied, SHUTDOWN, b"x")).messages == [b"xx"]


async def test_run_has_the_version_of_the_last_status(setup: ProxySetup) -> None:
    info = {"model_name": "Counter", "model_version": "1.2.0"}
    status = message("StatusResponse")(status_code=200, model_info=info).SerializeToString()

    async def answer_status(context: Any) -> None:
        await context.read()
        await context.write(status)

    setup.onward["call"] = Call(PROTOCOLS["omi"], "infer")
    setup.upstream.behaviours |= {RUN: answer, STATUS: answer_status}
    for path in (RUN, STATUS, RUN):
        await call_unary(setup.proxied, path, b"")
        await setup.captures.exchange()
    versions = [route.call and route.call.version for _, route in setup.captures.finished]
    assert versions == [None, None, "1.2.0"]


async def test_reconnects_to_a_restarted_upstream(setup: ProxySetup) -> None:
    async def call() -> grpc.StatusCode | None:
        return (await call_unary(setup.proxied, INFER, b"")).code

    await setup.upstream_server.stop(None)
    assert await call() is grpc.StatusCode.UNAVAILABLE
    assert (await setup.captures.exchange()).grpc_code == 14
    again = grpc.aio.server(handlers=(setup.upstream,))
    again.add_insecure_port(setup.at[0])
    setup.upstream.behaviours[INFER] = answer
    await again.start()
    await until(call, lambda code: code is grpc.StatusCode.OK)
    await again.stop(None)


async def test_trailer_has_the_given_or_generated_id(setup: ProxySetup) -> None:
    async def fail(context: Any) -> None:
        await answer(context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    metadata = (("x-request-id", "r-7"),)
    for path in (INFER, STREAM):
        for behaviour in (answer, fail):
            setup.upstream.behaviours[path] = behaviour
            with_id = await call_stream(setup.at[1], path, [REQUEST_BYTES], metadata=metadata)
            exchange = await setup.captures.exchange()
            without_id = await call_stream(setup.at[1], path, [REQUEST_BYTES])
            another = await setup.captures.exchange()
            assert header(exchange.response_headers, "inference-store-id") == with_id.id == "r-7"
            assert header(another.response_headers, "inference-store-id") == without_id.id
            assert UUID(without_id.id)
    assert (await call_unary(setup.proxied, V2 + "ServerLive", b"")).id is None
