"""However a call ends, it is handed over, and nothing is logged as our fault."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.grpc import Calls
from tests.integration.proxy.grpc_upstream import (
    INFER,
    STREAM,
    Line,
    ask,
    line,
    open_stream,
    stream,
    unary,
)
from tests.polling import until

SECONDS = 120


async def slow_echo(context: Any) -> None:
    while (asked := await context.read()) is not grpc.aio.EOF:
        await asyncio.sleep(random.random() / 50)
        await context.write(asked)
    if random.random() < 0.3:
        await context.abort(grpc.StatusCode.ABORTED, "at random")


async def leave(on: grpc.aio.Channel, number: int) -> None:
    """A call that is left at some moment, or finished, or out of time."""
    timeout = random.random() / 20 if number % 3 == 0 else None
    if number % 2:
        call: grpc.aio.Call = ask(on, INFER, b"x" * 1000, timeout=timeout)
        asking: asyncio.Future[Any] = asyncio.ensure_future(
            asyncio.wait([asyncio.ensure_future(call.code())])
        )
    else:
        call = open_stream(on, STREAM, timeout=timeout)
        asking = asyncio.ensure_future(_ask(call))
    if number % 5 == 0:
        await asyncio.sleep(random.random() / 20)
        call.cancel()
        asking.cancel()  # what is cancelled before it was sent waits for that for ever
    await asyncio.gather(asking, return_exceptions=True)


async def _ask(call: Any) -> None:
    for _ in range(random.randrange(4)):
        await call.write(b"y" * 100)
        if random.random() < 0.5:
            await call.read()
    await call.done_writing()
    await _rest(call)


async def _rest(call: Any) -> grpc.StatusCode:
    """The status comes behind the last message."""
    with suppress(grpc.RpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("by_model", [False, True])
async def test_every_place_is_given_back(by_model: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with line(by_model=by_model) as started:
        started.upstream.behaviours |= {INFER: slow_echo, STREAM: slow_echo}
        await asyncio.gather(*(leave(started.proxied, number) for number in range(150)))
        await _handed_over(started)
    assert started.captures.begun > 40
    for exchange, *_ in started.captures.finished:
        assert exchange.grpc_code is not None
        assert exchange.finished_at is not None
    assert not caplog.records


async def _handed_over(started: Line) -> None:
    for _ in range(started.captures.begun):
        await started.captures.exchange()
    assert len(started.captures.finished) == started.captures.begun


async def test_an_upstream_that_dies_midway_ends_every_call() -> None:
    async with line() as started:
        reached = asyncio.Semaphore(0)

        async def hang(context: Any) -> None:
            await context.read()
            await context.write(b"one")
            reached.release()
            await asyncio.sleep(SECONDS)

        started.upstream.behaviours |= {STREAM: hang}
        calls = [open_stream(started.proxied, STREAM) for _ in range(3)]
        async with asyncio.timeout(SECONDS):
            for call in calls:
                await call.write(b"x")
                await reached.acquire()
            await started.upstream_server.stop(None)
            codes = [await _rest(call) for call in calls]
        assert grpc.StatusCode.OK not in codes
        await _handed_over(started)
        parts = [exchange.response.parts for exchange, *_ in started.captures.finished]
        assert parts == [[b"one"]] * 3


async def test_a_server_that_stops_finishes_its_calls() -> None:
    async with line() as started:
        reached = asyncio.Event()

        async def slow(context: Any) -> None:
            asked = await context.read()
            reached.set()
            await asyncio.sleep(0.3)
            await context.write(asked)

        started.upstream.behaviours[INFER] = slow
        asking = asyncio.create_task(unary(started.proxied, INFER, b"x"))
        async with asyncio.timeout(SECONDS):
            await reached.wait()
            await started.server.stop(5)
            assert (await asking).messages == [b"x"]
            await started.captures.exchange()


async def test_a_failed_call_has_a_status_and_no_message() -> None:
    async def fail(context: Any) -> None:
        context.set_trailing_metadata((("x-last", "1"),))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with line() as started:
        started.upstream.behaviours[INFER] = fail
        seen = [await stream(address, INFER, [b"asked"]) for address in started.at]
        exchange = await started.captures.exchange()
    assert seen[0] == seen[1]
    assert (seen[1].messages, seen[1].details) == ([], "wrong shape")
    assert (exchange.grpc_code, exchange.error) == (3, "wrong shape")


def _refused() -> float:
    return SHOWN["proxy"].get_sample_value("inference_store_proxy_refused_calls_total") or 0


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_calls_beyond_the_most_are_refused_and_counted(path: str) -> None:
    """Also while another has not sent its request yet; when that is over, there is room again."""

    async def echo(context: Any) -> None:
        async for asked in _asked(context):
            await context.write(asked)

    async with line(calls=(calls := Calls(1))) as started, asyncio.timeout(SECONDS):
        started.upstream.behaviours |= {INFER: echo, STREAM: echo}
        waiting = open_stream(started.proxied, path)
        before, refused = _refused(), await unary(started.proxied, INFER, b"x")
        while waiting.done() or refused.code is grpc.StatusCode.OK:
            # the other has not come in yet, or too late
            waiting = open_stream(started.proxied, path) if waiting.done() else waiting
            before, refused = _refused(), await unary(started.proxied, INFER, b"x")
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "as many calls" in (refused.details or "")
        assert "all 1 gRPC calls are taken" in (await calls.why_full() or "")
        assert _refused() == before + 1
        await waiting.write(b"y")
        await waiting.done_writing()
        assert await waiting.read() == b"y"
        assert await _rest(waiting) is grpc.StatusCode.OK
        while (await unary(started.proxied, INFER, b"x")).code is not grpc.StatusCode.OK:
            pass
        await until(calls.why_full, lambda reason: reason is None)


async def _asked(context: Any) -> AsyncIterator[bytes]:
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message
