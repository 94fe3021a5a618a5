"""Limits of one caller on the gRPC port; a call is handed over whatever its end."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any

import grpc
import pytest

from inference_store.platform.metrics import SHOWN
from inference_store.platform.serving import Connections
from inference_store.proxy.grpc import Calls
from inference_store.proxy.grpc.server import Caller, close_surplus, limit_connections
from tests.polling import until

from .grpc_upstream import (
    HANG_SECONDS,
    INFER,
    SECONDS,
    STREAM,
    ProxySetup,
    begin_call,
    call_unary,
    echo,
    open_stream,
    start_proxy,
)

DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
ELSEWHERE = "127.0.0.2"
MESSAGE = b"\x00" + struct.pack(">I", 1) + b"x"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def encode_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode a frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def encode_headers(path: str) -> bytes:
    """Encode the headers of a request as literals without an index (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "proxy",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    texts = (text.encode() for pair in fields.items() for text in pair)
    lengths_and_texts = [bytes([len(text)]) + text for text in texts]
    pairs = zip(lengths_and_texts[::2], lengths_and_texts[1::2], strict=True)
    return b"".join(b"\x00" + name + value for name, value in pairs)


class RawCaller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def begin(self, path: str, data: bytes = b"") -> None:
        self._writer.write(encode_frame(HEADERS, END_HEADERS, 1, encode_headers(path)))
        if data:
            self._writer.write(encode_frame(DATA, 0, 1, data))

    async def wait_closed(self) -> None:
        while await self._reader.read(1 << 16):
            pass

    async def call(self, path: str) -> bytes:
        """Make a whole call; return the payload of the frame that ends it."""
        self.begin(path)
        self._writer.write(encode_frame(DATA, END_STREAM, 1, MESSAGE))
        return await self.read_payload(HEADERS, END_STREAM)

    async def read_payload(self, kind: int, flags: int = 0) -> bytes:
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == kind and head[4] & flags == flags:
                return payload


@asynccontextmanager
async def raw_caller(setup: ProxySetup, source: str = ELSEWHERE) -> AsyncIterator[RawCaller]:
    host, port = setup.at[1].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(PREFACE + encode_frame(SETTINGS, 0, 0, b""))
    try:
        yield RawCaller(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def start_echo(calls: Calls | None = None) -> AsyncIterator[ProxySetup]:
    async with start_proxy(calls=calls) as setup, asyncio.timeout(SECONDS):
        setup.upstream.behaviours |= {INFER: echo, STREAM: echo}
        yield setup


def read_counter(name: str, **labels: str) -> float:
    return SHOWN["proxy"].get_sample_value(f"inference_store_{name}_total", labels) or 0


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00" + struct.pack(">I", 100) + b"x" * 10])
async def test_a_request_that_does_not_arrive_ends_in_time(data: bytes) -> None:
    calls = Calls(1, message_seconds=0.3)
    async with start_echo(calls) as setup, raw_caller(setup) as raw:
        raw.begin(INFER, data)
        ended = await raw.read_payload(HEADERS, END_STREAM)
        assert b"grpc-status" in ended
        assert b"the request was not whole after 0.3 s" in ended
        await until(calls.why_full, lambda reason: reason is None)
        calls.message_seconds = SECONDS
        assert (await call_unary(setup.proxied, INFER, b"x")).code is grpc.StatusCode.OK
        assert setup.captures.begun == 1  # by the call that arrived


async def test_rejects_a_request_without_a_message() -> None:
    async with start_echo() as setup:
        call = open_stream(setup.proxied, INFER)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "this method takes one message, and the request has none"


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_one_address_cannot_take_all_calls(path: str) -> None:
    """Nor can all addresses take more; a call counts before its request has arrived, and when it
    ends there is room again."""
    calls = Calls(3, most_of_one=2)
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(start_echo(calls))
        first, second, third = [
            await stack.enter_async_context(raw_caller(setup)) for _ in range(3)
        ]
        for caller in (first, second):
            caller.begin(STREAM, MESSAGE)
            await caller.read_payload(DATA)  # it has come in
        before = read_counter("proxy_refused_calls")
        third.begin(path)
        ended = await third.read_payload(HEADERS, END_STREAM)
        assert b"as many calls from one address as it may" in ended
        # another address has room for one
        waiting = open_stream(setup.proxied, path)
        why = await until(calls.why_full, bool)
        assert "all 3 gRPC calls are taken" in (why or "")
        refused = await call_unary(setup.proxied, INFER, b"x")
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "as many calls under way" in (refused.details or "")
        assert read_counter("proxy_refused_calls") == before + 2
        await waiting.write(b"y")
        await waiting.done_writing()
        assert await waiting.read() == b"y"
        assert await _read_to_end(waiting) is grpc.StatusCode.OK
        await until(calls.why_full, lambda reason: reason is None)
        assert (await call_unary(setup.proxied, INFER, b"x")).code is grpc.StatusCode.OK


async def test_one_address_cannot_take_all_connections() -> None:
    connections = Connections("proxy", 100, 3)
    async with start_echo() as setup, AsyncExitStack() as stack:
        refused = read_counter("connections_refused", port="proxy", limit="address")
        callers = [await stack.enter_async_context(raw_caller(setup)) for _ in range(3)]
        port = int(setup.at[1].rsplit(":", 1)[1])
        known_callers = await until(
            lambda: _close_surplus(port, connections, set()),
            lambda known_callers: len(_select_elsewhere(known_callers)) == 3,
        )
        limiting = asyncio.create_task(limit_connections(port, connections, known_callers))
        stack.callback(limiting.cancel)
        for _ in range(2):
            async with raw_caller(setup) as further:
                await further.wait_closed()
        assert read_counter("connections_refused", port="proxy", limit="address") == refused + 2
        assert all([b"grpc-status" in await caller.call(INFER) for caller in callers])
        # another address has room
        assert (await call_unary(setup.proxied, INFER, b"x")).code is grpc.StatusCode.OK


async def _close_surplus(port: int, connections: Connections, callers: set[Caller]) -> set[Caller]:
    return close_surplus(port, connections, callers)


def _select_elsewhere(callers: set[Caller]) -> list[Caller]:
    return [caller for caller in callers if caller[0].endswith(ELSEWHERE)]


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
    for exchange in setup.captures.exchanges:
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
    ends = [
        (each.response.parts, each.grpc_code == 0, each.error is None)
        for each in setup.captures.exchanges
    ]
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
