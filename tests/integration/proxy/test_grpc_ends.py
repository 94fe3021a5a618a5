"""A call is handed over whatever its end, and nothing is logged as an error of ours."""

import asyncio
import logging
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import pytest

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.grpc import Calls
from tests.polling import until

from .grpc_upstream import (
    HANG_SECONDS,
    INFER,
    SECONDS,
    STREAM,
    ProxySetup,
    begin_call,
    call_stream,
    call_unary,
    echo,
    open_stream,
    start_proxy,
)

SEED = 5


class RandomCalls:
    """Calls that are cancelled at some moment, finish, or run out of time; answers to them."""

    def __init__(self, on: grpc.aio.Channel) -> None:
        self._on, self._chance = on, Random(SEED)

    async def echo(self, context: Any) -> None:
        """Answer now or some turns later, and fail at times."""
        while (request := await context.read()) is not grpc.aio.EOF:
            await self._pause()
            await context.write(request)
        if self._chance.random() < 0.3:
            await context.abort(grpc.StatusCode.ABORTED, "at random")

    async def make(self, number: int) -> None:
        timeout = self._chance.random() / 20 if number % 3 == 0 else None
        if number % 2:
            call: grpc.aio.Call = begin_call(self._on, INFER, b"x" * 1000, timeout=timeout)
            asking: asyncio.Future[Any] = asyncio.ensure_future(
                asyncio.wait([asyncio.ensure_future(call.code())])
            )
        else:
            call = open_stream(self._on, STREAM, timeout=timeout)
            asking = asyncio.ensure_future(self._write_messages(call))
        if number % 5 == 0:
            await self._pause()
            call.cancel()
            asking.cancel()  # a write cancelled before it was sent would wait for ever
        await asyncio.gather(asking, return_exceptions=True)

    async def _write_messages(self, call: Any) -> None:
        for _ in range(self._chance.randrange(4)):
            await call.write(b"y" * 100)
            if self._chance.random() < 0.5:
                await call.read()
        await call.done_writing()
        await _read_to_end(call)

    async def _pause(self) -> None:
        for _ in range(self._chance.randrange(100)):
            await asyncio.sleep(0)


async def _read_to_end(call: Any) -> grpc.StatusCode:
    """Read to the end of a call, where its status comes."""
    with suppress(grpc.RpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("by_model", [False, True])
async def test_every_call_is_handed_over(by_model: bool, caplog: pytest.LogCaptureFixture) -> None:
    print(f"seed {SEED}")
    caplog.set_level(logging.ERROR)
    async with start_proxy(by_model=by_model) as setup:
        calls = RandomCalls(setup.proxied)
        setup.upstream.behaviours |= {INFER: calls.echo, STREAM: calls.echo}
        await asyncio.gather(*(calls.make(number) for number in range(150)))
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


async def test_upstream_that_dies_ends_every_call(setup: ProxySetup) -> None:
    async def hang(context: Any) -> None:
        await context.read()
        await context.write(b"one")
        await asyncio.sleep(HANG_SECONDS)

    async def count_begun() -> int:
        return setup.captures.begun

    setup.upstream.behaviours |= {STREAM: hang}
    calls = [open_stream(setup.proxied, STREAM) for _ in range(3)]
    async with asyncio.timeout(SECONDS):
        for call in calls:
            await call.write(b"x")
            # the end of a call may overtake what the proxy has not read yet
            assert await call.read() == b"one"
            await call.write(b"unanswered")
        await until(count_begun, lambda begun: begun == 6)
        await setup.upstream_server.stop(None)
        codes = [await _read_to_end(call) for call in calls]
    assert grpc.StatusCode.OK not in codes
    await _wait_for_exchanges(setup)
    finished = [exchange for exchange, *_ in setup.captures.finished]
    ends = [(each.response.parts, each.grpc_code == 0, each.error is None) for each in finished]
    assert sorted(ends) == [([], False, False)] * 3 + [([b"one"], True, True)] * 3


async def test_stopping_server_finishes_its_calls(setup: ProxySetup) -> None:
    reached, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(context: Any) -> None:
        request = await context.read()
        reached.set()
        await may_answer.wait()
        await context.write(request)

    async def call_again() -> grpc.StatusCode | None:
        return (await call_unary(setup.proxied, "/other.Service/Method", b"x")).code

    setup.upstream.behaviours[INFER] = slow
    asking = asyncio.create_task(call_unary(setup.proxied, INFER, b"x"))
    async with asyncio.timeout(SECONDS):
        await reached.wait()
        stopping = asyncio.create_task(setup.server.stop(SECONDS))
        await until(call_again, lambda code: code is grpc.StatusCode.UNAVAILABLE)
        may_answer.set()
        await stopping
        assert (await asking).messages == [b"x"]
        await setup.captures.exchange()


async def test_failed_call_has_a_status_and_no_message(setup: ProxySetup) -> None:
    async def fail(context: Any) -> None:
        context.set_trailing_metadata((("x-last", "1"),))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong shape")

    setup.upstream.behaviours[INFER] = fail
    direct, proxied = [await call_stream(address, INFER, [b"asked"]) for address in setup.at]
    exchange = await setup.captures.exchange()
    assert proxied == direct
    assert (proxied.messages, proxied.details) == ([], "wrong shape")
    assert (exchange.grpc_code, exchange.error) == (3, "wrong shape")
    assert (exchange.response.parts, exchange.responded_at) == ([], None)
    assert exchange.finished_at is not None


def _count_refused() -> float:
    return SHOWN["proxy"].get_sample_value("inference_store_proxy_refused_calls_total") or 0


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_refuses_and_counts_calls_over_the_limit(path: str) -> None:
    """A call counts before its request has arrived; when it ends there is room again."""
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
