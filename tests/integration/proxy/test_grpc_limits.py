"""Limits of one caller on the gRPC port: connections, calls, and the time of a request."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from inference_store.platform.metrics import SHOWN
from inference_store.platform.serving import Connections
from inference_store.proxy.grpc import Calls, limit_connections
from inference_store.proxy.grpc.server import Caller, close_surplus
from tests.polling import until

from .grpc_upstream import (
    INFER,
    SECONDS,
    STREAM,
    ProxySetup,
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
    """A caller that sends any frames."""

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
        """Return the payload of the next frame of this kind with these flags."""
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
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(start_echo(Calls(3, most_of_one=2)))
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
        assert read_counter("proxy_refused_calls") == before + 1
        # another address has room
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
