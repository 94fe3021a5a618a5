"""The framing of requests: the upstream sees exactly what the caller sent, call after call."""

import pytest
from aiohttp import web

from .rest_server import connect, send_raw, start_line

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
# A body that looks like a request.
BODY = b"GET /v2/steal HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"4\r\n" + BODY[:4] + b"\r\n%x;x=y\r\n" % (len(BODY) - 4) + BODY[4:] + b"\r\n0\r\n"


class RecordingHandler:
    """Answers with the path and the body; records paths, headers, and connections."""

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


def _encode_head(path: str, *asks: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{''.join(asks)}\r\n".encode()


def _encode_get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("asks", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize(
    ("framing", "body"), [(LENGTH, BODY), (CHUNKED, IN_CHUNKS + b"\r\n")], ids=["length", "chunked"]
)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in its own segment"])
async def test_answers_upgrade_requests_in_http_1_1(
    asks: str, framing: str, body: bytes, waits: bool
) -> None:
    handler = RecordingHandler()
    async with start_line(handler) as line, connect(line.port) as first:
        first.send(
            _encode_head("/v2/mine", asks, framing, "Expect: 100-continue\r\n" if waits else "")
        )
        if waits:
            assert await first.read_until() == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert handler.paths == []
        first.send(body)
        assert await first.read_body() == b"/v2/mine " + BODY
        async with connect(line.port) as other:  # it uses the same connection to the upstream
            other.send(_encode_get("/v2/other"))
            assert await other.read_body() == b"/v2/other "
        first.send(_encode_get("/v2/next"))
        assert await first.read_body() == b"/v2/next "
    assert handler.paths == ["/v2/mine", "/v2/other", "/v2/next"]
    assert len(handler.connections) == 1
    assert not {"upgrade", "http2-settings", "connection", "expect"} & set(handler.headers[0])


async def test_answers_pipelined_calls_in_order() -> None:
    handler = RecordingHandler()
    calls = [
        _encode_head("/v2/0", LENGTH) + BODY,
        _encode_get("/v2/1"),
        _encode_head("/v2/2", CHUNKED) + IN_CHUNKS + b"\r\n",
        _encode_head("/v2/3", H2C, LENGTH) + BODY,
        _encode_get("/v2/4"),
    ]
    async with start_line(handler) as line, connect(line.port) as first:
        first.send(b"".join(calls))
        answers = [await first.read_body() for _ in calls]
    assert answers == [
        f"/v2/{number} ".encode() + (b"" if number in (1, 4) else BODY) for number in range(5)
    ]
    assert handler.paths == [f"/v2/{number}" for number in range(5)]


@pytest.mark.parametrize(
    "request_",
    [
        b"CONNECT models.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        _encode_head("/v2", LENGTH, CHUNKED) + BODY,
        _encode_head("/v2", LENGTH, "Content-Length: 1\r\n") + BODY,
        _encode_head("/v2", "Transfer-Encoding: chunked, gzip\r\n") + BODY,
        _encode_head("/v2", "Transfer-Encoding : chunked\r\n") + BODY,
        b"GET /v2/health/live HTTP/1.1\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
    ids=[
        *("connect", "connect path", "both", "two lengths", "not chunked", "space"),
        *("no host", "two hosts", "nonsense"),
    ],
)
async def test_a_head_that_may_be_read_in_two_ways_is_refused(request_: bytes) -> None:
    async with start_line(handler := RecordingHandler()) as line:
        answer = await send_raw(line.port, request_)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert handler.paths == []
