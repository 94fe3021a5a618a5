"""The border between two requests, whatever the head asks for and however it comes in."""

import asyncio
import gzip
import re
import threading
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from inference_store.platform.metrics import SHOWN
from inference_store.platform.serving import Connections, Limits, Receive, Scope, Send
from inference_store.platform.uvicorn_server import MOST_HEAD_BYTES
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.proxy.protocols.protocol import MOST_STRIPPED
from inference_store.proxy.rest_messages import ForwardedHeads, Stripping

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
# a body that is a request itself if its length is ignored
BODY = b"GET /v2/steal HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"5\r\n" + BODY[:5] + b"\r\n%x\r\n" % (len(BODY) - 5) + BODY[5:] + b"\r\n0\r\n"


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """One connection, and the requests that an application had of it: line, headers, body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[tuple[bytes, bytes]], bytes]] = []
        self.begins_at_once = False
        config = uvicorn.Config(
            self._answer, interface="asgi3", ws="none", lifespan="off", log_config=None
        )
        self.transport = Transport()
        connections = Connections("proxy", 1, 1)
        connections.take("a")
        self._protocol = ForwardedHeads(
            config, ServerState(), {}, connections=connections, limits=Limits(), address="a"
        )
        self._protocol.connection_made(self.transport)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": []}
        if self.begins_at_once:
            await send(start)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.requests.append((f"{scope['method']} {scope['path']}", list(scope["headers"]), body))
        if not self.begins_at_once:
            await send(start)
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.requests]

    async def send(self, *segments: bytes) -> None:
        """Hand over bytes as they come in; the application runs after each piece."""
        for segment in segments:
            if not self.transport.closed:
                self._protocol.data_received(segment)
            for _ in range(10):
                await asyncio.sleep(0)


def _make_requests(asks: str) -> list[bytes]:
    """A request with this in its head, its body framed in each way."""
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n{asks}".encode()
    return [
        head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED + b"\r\n",
    ]


NEXT = b"GET /v2/next HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_body_stays_a_body_wherever_it_is_cut() -> None:
    expected = [("POST /v2/models/m/infer", BODY), ("GET /v2/next", b"")]
    for asks in (H2C, WEBSOCKET, ""):
        for request in _make_requests(asks):
            for cut in range(len(request) + 1):
                connection = Connection()
                await connection.send(request[:cut], request[cut:] + NEXT)
                requests = [(line, body) for line, _, body in connection.requests]
                assert requests == expected, (asks, cut)
                answered = re.findall(rb"/v2/\S+", connection.transport.written)
                assert answered == [b"/v2/models/m/infer", b"/v2/next"], (asks, cut)
                assert not connection.transport.closed, (asks, cut)


async def test_many_in_one_segment() -> None:
    head = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{H2C}\r\n".encode()
    connection = Connection()
    await connection.send(head * 2000)
    while len(connection.requests) < 2000:
        before = len(connection.requests)
        await connection.send(b"")
        assert len(connection.requests) > before


async def test_chunks_are_the_only_coding() -> None:
    for version, coding, is_taken in (
        ("1.1", "chunked", True),
        ("1.1", "Chunked", True),
        ("1.0", "chunked", False),
        ("1.1", "gzip, chunked", False),
        ("1.1", "gzip\r\nTransfer-Encoding: chunked", False),
        ("1.1", "chunked, chunked", False),
        ("1.1", "identity", False),
        ("1.1", "", False),
    ):
        connection = Connection()
        head = f"POST /v2 HTTP/{version}\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n"
        await connection.send(head.encode() + CHUNKED + b"\r\n" + NEXT)
        assert connection.bodies == ([BODY, b""] if is_taken else [])
        assert connection.transport.written.startswith(b"HTTP/1.1 400") is not is_taken, version


async def test_trailers_are_no_headers_of_this_request_or_the_next() -> None:
    head = b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-User\r\n\r\n"
    request = head + CHUNKED + b"X-User: evil\r\nExpect: 100-continue\r\nX-Last: evil\r\n\r\n"
    for cut in range(len(request) + 1):
        connection = Connection()
        await connection.send(request[:cut], request[cut:] + NEXT)
        assert connection.bodies == [BODY, b""]
        values = {value for _, headers, _ in connection.requests for _, value in headers}
        assert values == {b"x", b"chunked", b"X-User"}
        assert b"100 Continue" not in connection.transport.written


async def test_a_large_head_or_trailer_is_cut_off_although_it_ends() -> None:
    long = b"X-Long: %s\r\n" % (b"x" * MOST_HEAD_BYTES)
    head = b"POST /v2 HTTP/1.1\r\nHost: x\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    for request, is_kept in (
        (head + long.replace(b"xxx" * 100, b"", 1) + b"\r\n", True),
        (head + long + b"\r\n", False),
        (b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * MOST_HEAD_BYTES), False),
        (chunked + b"1\r\nx\r\n0\r\n" + long + b"\r\n", False),
    ):
        connection = Connection()
        await connection.send(request + NEXT)
        assert connection.transport.closed is not is_kept
        if not is_kept:
            assert (connection.transport.written, connection.bodies) in ((b"", []), (b"", [b""]))


@pytest.mark.parametrize(
    "endless", [b"X: %s\r\n" % (b"x" * 1000), b"x" * 1000], ids=["fields", "a field"]
)
async def test_trailers_that_do_not_end_are_cut_off(endless: bytes) -> None:
    connection = Connection()
    await connection.send(b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await connection.send(b"1\r\nx\r\n0\r\nX-Long: ")
    sent = 0
    while sent < 2 * MOST_HEAD_BYTES and not connection.transport.closed:
        await connection.send(endless * 50)
        sent += len(endless) * 50
    assert connection.transport.closed
    assert sent <= MOST_HEAD_BYTES + len(endless) * 50


async def test_small_chunks_of_a_body_do_not_count_as_head() -> None:
    connection = Connection()
    await connection.send(b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        await connection.send(b"1\r\nx\r\n" * 20_000)
    await connection.send(b"0\r\n\r\n")
    assert [len(body) for _, _, body in connection.requests] == [400_000]


async def test_answers_expect_100_continue() -> None:
    for version, written in (("1.0", b""), ("1.1", b"HTTP/1.1 100 Continue\r\n\r\n")):
        connection = Connection()
        head = f"POST /v2 HTTP/{version}\r\nHost: x\r\nExpect: 100-continue\r\n"
        await connection.send(f"{head}Content-Length: 1\r\n\r\n".encode())
        assert connection.transport.written == written
        await connection.send(b"x")
        assert connection.bodies == [b"x"]


async def test_does_not_answer_a_malformed_request_inside_an_answer() -> None:
    connection = Connection()
    connection.begins_at_once = True
    await connection.send(_make_requests("")[1][:-20])
    written = connection.transport.written
    assert written.startswith(b"HTTP/1.1 200 ")
    await connection.send(b"no chunk" * 100)
    assert connection.transport.closed
    assert connection.transport.written == written


# Requests are held for stripping within one budget, and pass unchanged if it is spent.

WITH = b'{"parameters": {"metadata": "[]"}, "inputs": []}'


def read_count(why: str) -> float:
    name = "inference_store_proxy_unstripped_calls_total"
    return SHOWN["proxy"].get_sample_value(name, {"why": why}) or 0


def test_a_large_request_is_not_held() -> None:
    stripping, before = Stripping(MOST_STRIPPED * 2), read_count("large")
    assert stripping.take(0, MOST_STRIPPED)
    assert not stripping.take(MOST_STRIPPED, 1)
    assert read_count("large") == before + 1


async def test_few_bodies_are_parsed_at_once() -> None:
    stripping, at_once, most = Stripping(1000), 0, 0
    lock = threading.Lock()
    here = threading.Barrier(2, timeout=120)

    def strip(_: bytes, __: Headers) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        here.wait()
        with lock:
            at_once -= 1

    calls: list[Any] = [stripping.strip(strip, b"", []) for _ in range(8)]
    assert await asyncio.gather(*calls) == [None] * 8
    assert most == 2


@pytest.mark.parametrize("name", ["v2", "chariot-v2"])
def test_leaves_bodies_that_are_too_large_when_decoded(name: str) -> None:
    strip = PROTOCOLS[name].strip
    assert strip is not None
    headers = [("content-encoding", "gzip"), ("content-type", "application/json")]
    for size, is_stripped in ((1000, True), (MOST_STRIPPED, False)):
        packed = gzip.compress(WITH[:-1] + b" " * size + b"}")
        assert (strip(packed, headers) is not None) is is_stripped
