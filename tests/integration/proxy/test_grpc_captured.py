"""What is kept of a call over gRPC, where it goes, and what does not pass."""

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
from inference_store.proxy.protocols import PROTOCOLS, Call
from tests.integration.proxy.grpc_upstream import (
    INFER,
    STREAM,
    V2,
    line,
    open_stream,
    stream,
    unary,
)

REQUEST = message("inference.ModelInferRequest")(model_name="digits", model_version="3")
WRITTEN = REQUEST.SerializeToString()
SHUTDOWN, STATUS, RUN = (f"/ModzyModel/{name}" for name in ("Shutdown", "Status", "Run"))


async def answer(context: Any) -> None:
    asked = await context.read()
    await context.send_initial_metadata((("x-first", "1"),))
    await context.write(asked * 2)
    context.set_trailing_metadata((("x-last-bin", b"\0\xff"),))


async def test_an_exchange_is_whole() -> None:
    async with line() as started:
        started.upstream.behaviours[INFER] = answer
        before = datetime.now(UTC)
        metadata = (("traceparent", "00-0-0-00"), ("x-a-bin", b"\0\1"))
        await unary(started.proxied, INFER, WRITTEN, metadata=metadata)
        exchange = await started.captures.exchange()
    _, call, _, model = started.captures.finished[0]
    assert (call.protocol.name, model) == ("v2-grpc", "digits")
    assert (exchange.transport, exchange.method, exchange.path) == ("grpc", INFER, INFER)
    assert header(exchange.request_headers, "traceparent") == "00-0-0-00"
    assert header(exchange.request_headers, "x-a-bin") == "AAE"
    assert "grpc" in str(header(exchange.request_headers, "user-agent"))
    assert exchange.request.parts == [WRITTEN]
    assert exchange.response.parts == [WRITTEN * 2]
    assert exchange.request.whole
    assert exchange.response.size == 2 * len(WRITTEN)
    assert header(exchange.response_headers, "x-first") == "1"
    assert header(exchange.response_trailers, "x-last-bin") == "AP8"
    assert (exchange.grpc_code, exchange.error, exchange.http_status) == (0, None, None)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    times = [before, *times, exchange.finished_at, datetime.now(UTC)]
    assert times == sorted(times)


async def test_a_stream_is_one_exchange_with_its_messages_in_order() -> None:
    async def twice(context: Any) -> None:
        while (asked := await context.read()) is not grpc.aio.EOF:
            await context.write(asked + b"1")
            await context.write(asked + b"2")

    async with line() as started:
        started.upstream.behaviours[STREAM] = twice
        await stream(started.at[1], STREAM, [b"a", b"b"])
        exchange = await started.captures.exchange()
    assert exchange.request.parts == [b"a", b"b"]
    assert exchange.response.parts == [b"a1", b"a2", b"b1", b"b2"]
    assert len(started.captures.finished) == 1


async def test_an_error_is_kept_with_its_message() -> None:
    async def fail(context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with line() as started:
        started.upstream.behaviours[INFER] = fail
        await unary(started.proxied, INFER, WRITTEN)
        exchange = await started.captures.exchange()
    assert (exchange.grpc_code, exchange.error) == (3, "wrong shape")
    assert (exchange.response.parts, exchange.responded_at) == ([], None)
    assert exchange.finished_at is not None


async def test_what_is_over_the_budget_passes_without_its_bytes() -> None:
    async with line() as started:
        started.upstream.behaviours |= {INFER: answer, STREAM: answer}
        started.captures.room = 2 * len(WRITTEN)
        seen = await unary(started.proxied, INFER, WRITTEN)
        assert seen.messages == [WRITTEN * 2]
        exchange = await started.captures.exchange()
        assert exchange.request.bytes == WRITTEN
        response = exchange.response
        assert (response.parts, response.size, response.whole) == ([], 2 * len(WRITTEN), False)
        started.captures.room = 0
        assert (await unary(started.proxied, INFER, WRITTEN)).messages == [WRITTEN * 2]
        assert (await stream(started.at[1], STREAM, [WRITTEN])).messages == [WRITTEN * 2]
        assert started.captures.begun == 1
        started.captures.room = len(WRITTEN)
        assert (await stream(started.at[1], STREAM, [WRITTEN] * 3)).messages == [WRITTEN * 2]
        exchange = await started.captures.exchange()
        assert (exchange.method, exchange.response.whole) == (STREAM, False)
        assert exchange.request.parts == [WRITTEN]
        assert len(started.captures.finished) == 2


async def test_a_body_over_the_cap_passes_without_its_bytes() -> None:
    async with line() as started:
        started.upstream.behaviours |= {INFER: answer, STREAM: answer}
        started.captures.most = len(WRITTEN) - 1
        seen = await unary(started.proxied, INFER, WRITTEN)
        assert seen.messages == [WRITTEN * 2]
        request = (await started.captures.exchange()).request
        assert (request.parts, request.size, request.whole) == ([], len(WRITTEN), False)
        await stream(started.at[1], STREAM, [WRITTEN, b"x"])
        exchange = await started.captures.exchange()
        assert (exchange.request.parts, exchange.request.whole) == ([], False)
        assert exchange.response.parts == [WRITTEN * 2]


async def test_other_methods_are_not_captured() -> None:
    async with line() as started:
        path = V2 + "ModelReady"
        started.upstream.behaviours[path] = answer
        await unary(started.proxied, path, b"")
    assert started.captures.begun == 0


async def test_calls_are_routed_by_the_model_that_they_name() -> None:
    async with line(by_model=True) as started:
        started.upstream.behaviours |= {INFER: answer, STREAM: answer}
        await unary(started.proxied, INFER, WRITTEN)
        await stream(started.at[1], STREAM, [WRITTEN])
        await stream(started.at[1], STREAM, [])
        await unary(started.proxied, V2 + "ServerLive", b"")
        load = message("inference.RepositoryModelLoadRequest")(model_name="later")
        await unary(started.proxied, V2 + "RepositoryModelLoad", load.SerializeToString())
    assert started.asked == [
        (INFER, "digits", "3"),
        (STREAM, "digits", "3"),
        (STREAM, "digits", "3"),
        (STREAM, None, None),
        (V2 + "ServerLive", None, None),
        (V2 + "RepositoryModelLoad", "later", None),
    ]


async def test_a_stream_is_about_the_model_of_its_first_message_however_late() -> None:
    async with line() as started:
        started.upstream.behaviours[STREAM] = answer
        call = open_stream(started.proxied, STREAM)
        await asyncio.sleep(0.1)
        assert started.captures.begun == 0
        await call.write(WRITTEN)
        await call.done_writing()
        assert await call.read() == WRITTEN * 2
        assert await call.read() is grpc.aio.EOF
        await started.captures.exchange()
    assert started.asked == [(STREAM, None, None), (STREAM, "digits", "3")]
    assert started.captures.finished[0][3] == "digits"


async def test_a_stream_that_asked_nothing_is_not_captured() -> None:
    async with line() as started:
        started.upstream.behaviours[STREAM] = answer
        await stream(started.at[1], STREAM, [])
    assert started.captures.begun == 0


async def test_a_stream_to_an_upstream_that_is_away_is_captured() -> None:
    async with line() as started:
        await started.upstream_server.stop(None)
        seen = await stream(started.at[1], STREAM, [WRITTEN])
        assert seen.code is grpc.StatusCode.UNAVAILABLE
        exchange = await started.captures.exchange()
    assert (exchange.grpc_code, exchange.request.parts) == (14, [WRITTEN])


async def test_a_model_that_nobody_serves_is_not_found() -> None:
    async with line(by_model=True) as started:
        asked = message("inference.ModelInferRequest")(model_name="nobodys").SerializeToString()
        assert (await unary(started.proxied, INFER, asked)).code is grpc.StatusCode.NOT_FOUND
        assert (await stream(started.at[1], STREAM, [asked])).code is grpc.StatusCode.NOT_FOUND


async def test_shutdown_does_not_pass() -> None:
    async with line() as started:
        started.upstream.behaviours[SHUTDOWN] = answer
        seen = await unary(started.proxied, SHUTDOWN, b"")
        assert seen.code is grpc.StatusCode.PERMISSION_DENIED
        assert started.upstream.metadata == []


async def test_an_allowed_shutdown_passes_and_a_dropped_connection_is_success() -> None:
    async with line() as started:
        started.onward["allow_shutdown"] = True
        started.upstream.behaviours[SHUTDOWN] = answer
        assert (await unary(started.proxied, SHUTDOWN, b"x")).messages == [b"xx"]

        async def drop(_: Any) -> None:
            stopping.append(asyncio.create_task(started.upstream_server.stop(None)))
            await asyncio.sleep(30)

        stopping: list[Any] = []
        started.upstream.behaviours[SHUTDOWN] = drop
        seen = await unary(started.proxied, SHUTDOWN, b"")
        assert seen.code is grpc.StatusCode.OK
        assert message("ShutdownResponse").FromString(seen.messages[0]).status_code == 202
        await asyncio.gather(*stopping)


async def test_a_shutdown_of_what_is_not_there_is_no_success() -> None:
    async with line() as started:
        started.onward["allow_shutdown"] = True
        await started.upstream_server.stop(None)
        seen = await unary(started.proxied, SHUTDOWN, b"")
        assert seen.code is grpc.StatusCode.UNAVAILABLE


async def test_a_run_has_the_version_that_the_status_before_it_said() -> None:
    protocol = PROTOCOLS["omi"]
    info = {"model_name": "Counter", "model_version": "1.2.0"}
    status = message("StatusResponse")(status_code=200, model_info=info).SerializeToString()

    async def told(context: Any) -> None:
        await context.read()
        await context.write(status)

    async with line() as started:
        started.onward["call"] = Call(protocol, "infer")
        started.upstream.behaviours |= {RUN: answer, STATUS: told}
        for path in (RUN, STATUS, RUN):
            await unary(started.proxied, path, b"")
            await started.captures.exchange()
    versions = [call.version for _, call, _, _ in started.captures.finished]
    assert versions == [None, None, "1.2.0"]


async def test_an_upstream_that_comes_back_is_found_soon() -> None:
    async with line() as started:
        port = int(started.at[0].rpartition(":")[2])
        await started.upstream_server.stop(None)
        assert (await unary(started.proxied, INFER, b"")).code is grpc.StatusCode.UNAVAILABLE
        again = grpc.aio.server(handlers=(started.upstream,))
        again.add_insecure_port(f"127.0.0.1:{port}")
        started.upstream.behaviours[INFER] = answer
        await again.start()
        before, code = time.monotonic(), None
        while code is not grpc.StatusCode.OK and time.monotonic() - before < 60:
            code = (await unary(started.proxied, INFER, b"")).code
            await asyncio.sleep(0.02)
        await again.stop(None)
        assert code is grpc.StatusCode.OK
        assert time.monotonic() - before < 20


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_trailer_names_the_id_that_came_in_metadata_or_was_made(
    path: str, fails: bool
) -> None:
    async def end(context: Any) -> None:
        await answer(context)
        if fails:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with line() as started:
        started.upstream.behaviours |= {INFER: end, STREAM: end}
        given = (("x-request-id", "r-7"),)
        named = await stream(started.at[1], path, [WRITTEN], metadata=given)
        exchange = await started.captures.exchange()
        made = await stream(started.at[1], path, [WRITTEN])
        another = await started.captures.exchange()
        unknown = await unary(started.proxied, V2 + "ServerLive", b"")
    assert header(exchange.response_headers, ID_HEADER) == named.id
    assert header(another.response_headers, ID_HEADER) == made.id
    assert named.id == "r-7"
    assert UUID(made.id)
    assert unknown.id is None
