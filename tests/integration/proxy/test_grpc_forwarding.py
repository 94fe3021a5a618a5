"""What a caller gets through the proxy is what it gets without it."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from inference_store.grpc_messages import message
from tests.integration.proxy.grpc_upstream import (
    INFER,
    STREAM,
    V2,
    Line,
    ask,
    line,
    open_stream,
    stream,
    unary,
)

REQUEST = message("inference.ModelInferRequest")(
    model_name="digits", model_version="3", id="1", raw_input_contents=[b"\0\1" * 50]
).SerializeToString()
UNKNOWN = "/somebodys.Own/Method"


@pytest.fixture
async def started() -> AsyncIterator[Line]:
    async with line() as found:
        yield found


async def echo(context: Any) -> None:
    """Each message back, turned around; metadata on both ends."""
    await context.send_initial_metadata((("x-first", "1"), ("x-first", "2"), ("x-bin", b"\0\xff")))
    while (asked := await context.read()) is not grpc.aio.EOF:
        await context.write(asked[::-1])
    context.set_trailing_metadata((("x-last", "z"), ("x-last-bin", b"\xfe")))


async def fail(context: Any) -> None:
    await context.read()
    context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x05 more"), ("x-why", "w")))
    context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
    context.set_details("no such thing: café %41\n")


async def fail_at_once(context: Any) -> None:
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)


async def fail_midway(context: Any) -> None:
    await context.write(b"one")
    await context.write(b"two")
    context.set_code(grpc.StatusCode.DATA_LOSS)
    context.set_details("lost")


async def remark(context: Any) -> None:
    """All went well, and the status still says something."""
    await context.read()
    context.set_details("a remark")
    await context.write(b"")


async def large(context: Any) -> None:
    await context.read()
    await context.write(b"x" * (20 << 20))


BEHAVIOURS = [echo, fail, fail_at_once, fail_midway, remark, large]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("path", [INFER, V2 + "ServerLive", UNKNOWN])
async def test_one_message_each_way(started: Line, path: str, behaviour: Any) -> None:
    if behaviour is fail_midway:
        behaviour = fail
    started.upstream.behaviours[path] = behaviour
    metadata = (("authorization", "Bearer x"), ("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\0\1\xff"))
    direct = await unary(started.direct, path, REQUEST, metadata=metadata)
    proxied = await unary(started.proxied, path, REQUEST, metadata=metadata)
    assert proxied == direct
    theirs, ours = (dict.fromkeys(each) for each in started.upstream.metadata)
    assert [each for each in theirs if each[0] != "user-agent"] == list(metadata)
    assert [each for each in ours if each[0] != "user-agent"] == list(metadata)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("path", [STREAM, UNKNOWN])
@pytest.mark.parametrize("number", [0, 1, 40])
async def test_any_number_of_messages(
    started: Line, path: str, behaviour: Any, number: int
) -> None:
    started.upstream.behaviours[path] = behaviour
    messages = [REQUEST + bytes([each]) * each for each in range(number)]
    direct = await stream(started.at[0], path, messages)
    proxied = await stream(started.at[1], path, messages)
    if not messages and not proxied.initial:
        # A call that ends at once: if grpc.aio has its status first, it gives no initial metadata
        # (docs/capture.md). All else is as it came.
        direct = replace(direct, initial=proxied.initial)
    assert proxied == direct
    assert direct.code is not None


async def test_a_method_that_is_not_there(started: Line) -> None:
    for path in (INFER, UNKNOWN):
        direct = await unary(started.direct, path, b"")
        assert direct.code is grpc.StatusCode.UNIMPLEMENTED
        assert await unary(started.proxied, path, b"") == direct


async def test_answers_come_before_the_request_has_ended(started: Line) -> None:
    started.upstream.behaviours[STREAM] = echo
    call = open_stream(started.proxied, STREAM)
    async with asyncio.timeout(60):
        assert ("x-first", "1") in tuple(await call.initial_metadata())
        for each in (b"ab", b"cd"):
            await call.write(each)
            assert await call.read() == each[::-1]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_an_upstream_may_end_a_stream_that_is_still_asking(started: Line) -> None:
    async def one(context: Any) -> None:
        await context.write(await context.read())

    started.upstream.behaviours[STREAM] = one
    call = open_stream(started.proxied, STREAM)
    async with asyncio.timeout(60):
        await call.write(b"a")
        assert [each async for each in call] == [b"a"]
        assert await call.code() is grpc.StatusCode.OK
    assert (await started.captures.exchange()).grpc_code == 0


async def wait(context: Any) -> None:
    await context.read()
    await asyncio.sleep(30)


@pytest.mark.parametrize("path", [INFER, STREAM, UNKNOWN])
async def test_a_deadline_is_the_upstreams_too(started: Line, path: str) -> None:
    started.upstream.behaviours[path] = wait
    before = time.monotonic()
    seen = await unary(started.proxied, path, REQUEST, timeout=0.4)
    assert seen.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - before < 20
    async with asyncio.timeout(60):
        await started.upstream.cancelled.wait()
    assert started.upstream.left is not None
    assert started.upstream.left < 0.5
    if path != UNKNOWN:
        # the caller's timer began first: its RST_STREAM may come before the proxy's deadline
        assert (await started.captures.exchange()).grpc_code in (1, 4)


async def test_no_deadline_is_none(started: Line) -> None:
    started.upstream.behaviours[INFER] = echo
    await unary(started.direct, INFER, b"")
    without = started.upstream.left
    await unary(started.proxied, INFER, b"")
    assert started.upstream.left == without


async def test_the_configurations_limit_counts_where_it_is_earlier(started: Line) -> None:
    started.upstream.behaviours[INFER] = wait
    started.onward["timeout_seconds"] = 0.2
    seen = await unary(started.proxied, INFER, REQUEST, timeout=120)
    assert seen.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await started.captures.exchange()).grpc_code == 4


@pytest.mark.parametrize("path", [INFER, STREAM, UNKNOWN])
async def test_a_caller_that_cancels_cancels_the_upstream(started: Line, path: str) -> None:
    reached = asyncio.Event()

    async def behaviour(context: Any) -> None:
        await context.read()
        reached.set()
        await asyncio.sleep(30)

    started.upstream.behaviours[path] = behaviour
    call = ask(started.proxied, path, REQUEST)
    async with asyncio.timeout(60):
        await asyncio.wait([asyncio.ensure_future(reached.wait())])
        call.cancel()
        await started.upstream.cancelled.wait()
    if path != UNKNOWN:
        exchange = await started.captures.exchange()
        assert exchange.grpc_code == 1
        assert exchange.error == "the caller was gone before the answer's end"
        assert exchange.request.bytes == REQUEST


async def test_an_upstream_that_is_away(started: Line) -> None:
    await started.upstream_server.stop(None)
    direct = await unary(started.direct, INFER, REQUEST)
    proxied = await unary(started.proxied, INFER, REQUEST)
    assert direct.code is proxied.code is grpc.StatusCode.UNAVAILABLE
    assert (await started.captures.exchange()).grpc_code == 14


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests_and_answers(compression: grpc.Compression) -> None:
    async with line(compression=compression) as started:

        async def compressed(context: Any) -> None:
            context.set_compression(compression)
            await echo(context)

        started.upstream.behaviours |= {INFER: compressed, STREAM: compressed}
        channels, way = (started.direct, started.proxied), {"compression": compression}
        direct, proxied = [await unary(on, INFER, REQUEST, **way) for on in channels]
        assert proxied == direct
        assert proxied.messages == [REQUEST[::-1]]
        assert (await started.captures.exchange()).request.bytes == REQUEST
        direct, proxied = [await stream(to, STREAM, [REQUEST] * 3, **way) for to in started.at]
        assert proxied == direct
        assert proxied.messages == [REQUEST[::-1]] * 3
        assert (await started.captures.exchange()).response.parts == proxied.messages


async def test_large_messages_pass_and_larger_ones_are_refused() -> None:
    async with line(message_bytes=8 << 20) as started:
        started.upstream.behaviours[INFER] = echo
        fits = await unary(started.proxied, INFER, b"x" * (6 << 20))
        assert len(fits.messages[0]) == 6 << 20
        too_large = await unary(started.proxied, INFER, b"x" * (9 << 20))
        assert too_large.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_much_metadata_passes(started: Line) -> None:
    async def behaviour(context: Any) -> None:
        await context.read()
        context.set_trailing_metadata((("x-long", "y" * 7_000),))
        await context.write(b"")

    started.upstream.behaviours[INFER] = behaviour
    metadata = (("x-long", "x" * 7_000),)
    direct = await unary(started.direct, INFER, b"", metadata=metadata)
    assert await unary(started.proxied, INFER, b"", metadata=metadata) == direct
    assert direct.code is grpc.StatusCode.OK
