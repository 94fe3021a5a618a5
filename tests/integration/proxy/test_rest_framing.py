"""Where a request ends: the upstream sees what the caller sent, and no more, call after call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from .rest_server import DEADLINE, Kept, proxy, raw, upstream

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
# a request itself, for whoever forgets that it is a body
BODY = b"GET /v2/steal HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"4\r\n" + BODY[:4] + b"\r\n%x;x=y\r\n" % (len(BODY) - 4) + BODY[4:] + b"\r\n0\r\n"


class Seen:
    """Answers the path and the body; remembers paths, headers, and the connections used."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[object] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.paths.append(request.raw_path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.connections.add(request.transport)
        return web.Response(body=request.raw_path.encode() + b" " + body)


class Caller:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.send = writer.write

    async def head(self) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), DEADLINE)

    async def answer(self) -> bytes:
        """The body of the next answer."""
        lines = (await self.head()).lower().split(b"\r\n")
        (length,) = (int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return await asyncio.wait_for(self._reader.readexactly(length), DEADLINE)


@asynccontextmanager
async def caller(port: int) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def _head(path: str, *asks: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{''.join(asks)}\r\n".encode()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("asks", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize(
    ("framing", "body"), [(LENGTH, BODY), (CHUNKED, IN_CHUNKS + b"\r\n")], ids=["length", "chunked"]
)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in its own segment"])
async def test_who_asks_for_another_protocol_is_answered_in_this_one(
    asks: str, framing: str, body: bytes, waits: bool
) -> None:
    seen = Seen()
    async with upstream(seen) as port, proxy(port, Kept()) as before, caller(before) as one:
        one.send(_head("/v2/mine", asks, framing, "Expect: 100-continue\r\n" if waits else ""))
        if waits:
            assert (await one.head()).startswith(b"HTTP/1.1 100 ")
        one.send(body)
        assert await one.answer() == b"/v2/mine " + BODY
        async with caller(before) as other:  # over the same connection to the upstream
            other.send(_get("/v2/other"))
            assert await other.answer() == b"/v2/other "
        one.send(_get("/v2/next"))
        assert await one.answer() == b"/v2/next "
    assert seen.paths == ["/v2/mine", "/v2/other", "/v2/next"]
    assert len(seen.connections) == 1
    assert not {"upgrade", "http2-settings", "connection"} & set(seen.headers[0])


async def test_trailers_do_not_go_on() -> None:
    seen = Seen()
    trailers = b"X-User: evil\r\nContent-Type: text/evil\r\n\r\n"
    async with upstream(seen) as port, proxy(port, Kept()) as before, caller(before) as one:
        one.send(_head("/v2/mine", CHUNKED, "X-User: me\r\n") + IN_CHUNKS + trailers)
        assert await one.answer() == b"/v2/mine " + BODY
        one.send(_get("/v2/next"))
        assert await one.answer() == b"/v2/next "
    assert seen.headers[0]["x-user"] == "me"
    assert not any("evil" in value for headers in seen.headers for value in headers.values())


async def test_who_waits_to_be_told_to_go_on_is_told_by_the_proxy() -> None:
    seen = Seen()
    async with upstream(seen) as port, proxy(port, Kept()) as before, caller(before) as one:
        one.send(_head("/v2/mine", LENGTH, "Expect: 100-continue\r\n"))
        assert await one.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert seen.paths == []
        one.send(BODY)
        assert await one.answer() == b"/v2/mine " + BODY
    assert "expect" not in seen.headers[0]


async def test_many_calls_in_one_segment_are_answered_in_their_order() -> None:
    seen = Seen()
    calls = [
        _head("/v2/0", LENGTH) + BODY,
        _get("/v2/1"),
        _head("/v2/2", CHUNKED) + IN_CHUNKS + b"\r\n",
        _head("/v2/3", H2C, LENGTH) + BODY,
        _get("/v2/4"),
    ]
    async with upstream(seen) as port, proxy(port, Kept()) as before, caller(before) as one:
        one.send(b"".join(calls))
        answers = [await one.answer() for _ in calls]
    assert answers == [
        f"/v2/{number} ".encode() + (b"" if number in (1, 4) else BODY) for number in range(5)
    ]
    assert seen.paths == [f"/v2/{number}" for number in range(5)]


@pytest.mark.parametrize(
    "request_",
    [
        b"CONNECT models.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        _head("/v2", LENGTH, CHUNKED) + BODY,
        _head("/v2", LENGTH, "Content-Length: 1\r\n") + BODY,
        _head("/v2", "Transfer-Encoding: chunked, gzip\r\n") + BODY,
        _head("/v2", "Transfer-Encoding : chunked\r\n") + BODY,
        b"nonsense\r\n\r\n",
    ],
    ids=["connect", "connect path", "both", "two lengths", "not chunked", "space", "nonsense"],
)
async def test_a_head_that_may_be_read_in_two_ways_is_refused(request_: bytes) -> None:
    seen = Seen()
    async with upstream(seen) as port, proxy(port, Kept()) as before:
        answer = await raw(before, request_)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert seen.paths == []
