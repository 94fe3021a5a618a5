"""A call is handed over whatever its end, and nothing is logged as an error of ours."""

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
    ProxySetup,
    begin_call,
    call_stream,
    call_unary,
    open_stream,
    start_proxy,
)
from tests.polling import until

SECONDS = 120


async def slow_echo(context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await asyncio.sleep(random.random() / 50)
        await context.write(request)
    if random.random() < 0.3:
        await context.abort(grpc.StatusCode.ABORTED, "at random")


async def call_and_leave(on: grpc.aio.Channel, number: int) -> None:
    """Make a call that is cancelled at some moment, finishes, or runs out of time."""
    timeout = random.random() / 20 if number % 3 == 0 else None
    if number % 2:
        call: grpc.aio.Call = begin_call(on, INFER, b"x" * 1000, timeout=timeout)
        asking: asyncio.Future[Any] = asyncio.ensure_future(
            asyncio.wait([asyncio.ensure_future(call.code())])
        )
    else:
        call = open_stream(on, STREAM, timeout=timeout)
        asking = asyncio.ensure_future(_write_messages(call))
    if number % 5 == 0:
        await asyncio.sleep(random.random() / 20)
        call.cancel()
        asking.cancel()  # a write cancelled before it was sent would wait for ever
    await asyncio.gather(asking, return_exceptions=True)


async def _write_messages(call: Any) -> None:
    for _ in range(random.randrange(4)):
        await call.write(b"y" * 100)
        if random.random() < 0.5:
            await call.read()
    await call.done_writing()
    await _read_to_end(call)


async def _read_to_end(call: Any) -> grpc.StatusCode:
    """Read to the end of a call, where its status comes."""
    with suppress(grpc.RpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("by_model", [False, True])
async def test_every_call_is_handed_over(by_model: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with start_proxy(by_model=by_model) as setup:
        setup.upstream.behaviours |= {INFER: slow_echo, STREAM: slow_echo}
        await asyncio.gather(*(call_and_leave(setup.proxied, number) for number in range(150)))
        await _wait_for_exchanges(setup)
    assert setup.captures.begun > 40
    for exchange, *_ in setup.captures.finished:
        assert exchange.grpc_code is not None
        assert exchange.finished_at is not None
    assert not caplog.records


async def _wait_for_exchanges(setup: ProxySetup) -> None:
    # a call that its caller has left may begin here after that
    while len(setup.captures.finished) < setup.captures.begun:
        await setup.captures.exchange()


async def test_upstream_that_dies_ends_every_call() -> None:
    async with start_proxy() as setup:

        async def hang(context: Any) -> None:
            await context.read()
            await context.write(b"one")
            await asyncio.sleep(SECONDS)

        setup.upstream.behaviours |= {STREAM: hang}
        calls = [open_stream(setup.proxied, STREAM) for _ in range(3)]
        async with asyncio.timeout(SECONDS):
            for call in calls:
                await call.write(b"x")
                # the end of a call may overtake what the proxy has not read yet
                assert await call.read() == b"one"
            await setup.upstream_server.stop(None)
            codes = [await _read_to_end(call) for call in calls]
        assert grpc.StatusCode.OK not in codes
        await _wait_for_exchanges(setup)
        parts = [exchange.response.parts for exchange, *_ in setup.captures.finished]
        assert parts == [[b"one"]] * 3


async def test_stopping_server_finishes_its_calls() -> None:
    async with start_proxy() as setup:
        reached = asyncio.Event()

        async def slow(context: Any) -> None:
            request = await context.read()
            reached.set()
            await asyncio.sleep(0.3)
            await context.write(request)

        setup.upstream.behaviours[INFER] = slow
        asking = asyncio.create_task(call_unary(setup.proxied, INFER, b"x"))
        async with asyncio.timeout(SECONDS):
            await reached.wait()
            await setup.server.stop(SECONDS)
            assert (await asking).messages == [b"x"]
            await setup.captures.exchange()


async def test_failed_call_has_a_status_and_no_message() -> None:
    async def fail(context: Any) -> None:
        context.set_trailing_metadata((("x-last", "1"),))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    async with start_proxy() as setup:
        setup.upstream.behaviours[INFER] = fail
        results = [await call_stream(address, INFER, [b"asked"]) for address in setup.at]
        exchange = await setup.captures.exchange()
    assert results[0] == results[1]
    assert (results[1].messages, results[1].details) == ([], "wrong shape")
    assert (exchange.grpc_code, exchange.error) == (3, "wrong shape")


def _count_refused() -> float:
    return SHOWN["proxy"].get_sample_value("inference_store_proxy_refused_calls_total") or 0


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_refuses_and_counts_calls_over_the_limit(path: str) -> None:
    """A call counts before its request has arrived; when it ends there is room again."""

    async def echo(context: Any) -> None:
        async for request in _read_requests(context):
            await context.write(request)

    async with start_proxy(calls=(calls := Calls(1))) as setup, asyncio.timeout(SECONDS):
        setup.upstream.behaviours |= {INFER: echo, STREAM: echo}
        waiting = open_stream(setup.proxied, path)
        before, refused = _count_refused(), await call_unary(setup.proxied, INFER, b"x")
        while waiting.done() or refused.code is grpc.StatusCode.OK:
            # The other call has not arrived yet, or too late.
            waiting = open_stream(setup.proxied, path) if waiting.done() else waiting
            before, refused = _count_refused(), await call_unary(setup.proxied, INFER, b"x")
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "as many calls" in (refused.details or "")
        assert "all 1 gRPC calls are taken" in (await calls.why_full() or "")
        assert _count_refused() == before + 1
        await waiting.write(b"y")
        await waiting.done_writing()
        assert await waiting.read() == b"y"
        assert await _read_to_end(waiting) is grpc.StatusCode.OK
        while (await call_unary(setup.proxied, INFER, b"x")).code is not grpc.StatusCode.OK:
            pass
        await until(calls.why_full, lambda reason: reason is None)


async def _read_requests(context: Any) -> AsyncIterator[bytes]:
    while (request := await context.read()) is not grpc.aio.EOF:
        yield request
