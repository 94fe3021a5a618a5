"""Framing of requests, answers that are no valid HTTP, and metadata stripped on the way."""

import asyncio
import gc
import gzip
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from socket import SO_LINGER, SOL_SOCKET

import orjson
import pytest
from aiohttp import web

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.configuration import Rules
from tests.fake_captures import FakeCaptures

from .rest_server import (
    DEADLINE,
    connect,
    encode_request,
    proxy,
    send_raw,
    start_line,
)

# A body that looks like a request.
BODY = b"GET /v2/steal HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"


class RecordingHandler:
    """Answers with the path and the body, once `count` requests have arrived; records them."""

    def __init__(self, count: int = 1) -> None:
        self._here = asyncio.Barrier(count)
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.paths.append(request.raw_path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(body)
        await asyncio.wait_for(self._here.wait(), DEADLINE)
        return web.Response(body=request.raw_path.encode() + b" " + body)


def _encode_head(path: str, *asks: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{''.join(asks)}\r\n".encode()


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


REQUEST = encode_request("POST", "/v2/models/m/infer", b"{}")
CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def start_upstream(
    first: bytes, second: bytes = b"", *, go_on: asyncio.Event | None = None
) -> AsyncIterator[int]:
    """Start an upstream that sends `first`, then `second` after `go_on`; yield its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(first)
        if go_on is not None:
            await asyncio.wait_for(go_on.wait(), DEADLINE)
        writer.write(second)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _split_answer(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], orjson.loads(body)["error"]


_INVALID = "the upstream one cannot be reached: ClientResponseError"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 742 Odd\r\nContent-Length: 3\r\n\r\nabc", "the status 742"),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "the status 999"),
        (b"HTTP/1.1 600 Odd\r\nTransfer-Encoding: chunked\r\n\r\n", "the status 600"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 3\r\n\r\nabc", "the status 99"),
        (b"HTTP/1.1 101 Switch\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "the status 101"),
        (b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 3\r\n\r\nabc", "control characters"),
        (b"SECRET\r\n\r\n", _INVALID),
        (b"HTTP/1.1 200 OK\r\nSECRET(: x\r\n\r\n", _INVALID),
        (b"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\nabc", _INVALID),
        (CHUNKED_ANSWER + b"SECRET\r\n", _INVALID),
        (b"", "the upstream one cannot be reached: ServerDisconnectedError"),
    ],
    ids=["742", "999", "600", "099", "101", "control", "line", "header", "length", "chunk", "none"],
)
async def test_unwritable_answer_is_a_bad_gateway(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid HTTP is not quoted."""
    captures = FakeCaptures()
    async with start_upstream(answer) as port, proxy(port, captures) as before:
        line, error = _split_answer(await send_raw(before, REQUEST))
        exchange = await captures.exchange()
    assert line == b"HTTP/1.1 502 Bad Gateway"
    assert error == why if why is _INVALID else why in error
    assert (exchange.error, exchange.http_status) == (error, None)
    assert "SECRET" not in caplog.text + "".join(capsys.readouterr())


async def test_skips_interim_responses() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answer = b"HTTP/1.1 599 Odd\r\nContent-Length: 3\r\n\r\nabc"
    async with start_upstream(hints + answer) as port, proxy(port) as before:
        response = await send_raw(before, REQUEST)
    assert response.startswith(b"HTTP/1.1 599 ")
    assert response.endswith(b"\r\n\r\nabc")


async def test_trailers_are_no_headers_of_the_next_answer_on_the_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with closing(writer):
            await reader.readuntil(b"{}")
            writer.write(CHUNKED_ANSWER + b"3\r\nabc\r\n0\r\nX-Late: of another caller\r\n\r\n")
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxy(port) as before:
            first = await send_raw(before, REQUEST)
            second = await send_raw(before, REQUEST)
    assert first.startswith(b"HTTP/1.1 200 ")
    assert first.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert second.endswith(b"\r\n\r\nok")
    assert b"x-late" not in second.lower()
    assert connections == 1


@pytest.mark.parametrize(
    "broken", [b"SECRET\r\n", b"6\r\nSECRET!!!\r\n", b"6\r\nSEC"], ids=["size", "end", "short"]
)
async def test_cuts_off_an_answer_with_broken_framing(
    broken: bytes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on, captures = asyncio.Event(), FakeCaptures()
    first = CHUNKED_ANSWER + b"3\r\nxyz\r\n"
    async with start_upstream(first, broken, go_on=go_on) as port, proxy(port, captures) as before:
        async with connect(before) as caller:
            caller.send(REQUEST)
            await caller.read_until(b"xyz")
            go_on.set()
            rest = await caller.read_all()
        exchange = await captures.exchange()
    assert not rest.endswith(b"0\r\n\r\n")
    assert exchange.error == "the upstream one cannot be reached: ClientPayloadError"
    assert not exchange.response.whole
    assert "SECRET" not in caplog.text + "".join(capsys.readouterr())


async def test_replaces_a_lost_idle_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged when an idle connection is lost, and the next call opens another."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"{}"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nxyz")
                await asyncio.wait_for(go_on.wait(), DEADLINE)
                writer.write(b"def")
        writer.close()

    async def call(port: int) -> None:
        go_on.clear()
        async with connect(port) as caller:
            caller.send(REQUEST)
            await caller.read_until(b"xyz")
            go_on.set()
            assert await caller.read_all() == b"def"

    go_on = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, proxy(server.sockets[0].getsockname()[1]) as before:
        for _ in range(3):
            await call(before)
        assert len(connections) == 1
        resting = connections[0].get_extra_info("socket")
        resting.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        connections[0].transport.abort()
        await call(before)
        assert len(connections) == 2
    gc.collect()
    assert "never retrieved" not in caplog.text


STRIPS = Rules(strip_metadata=True)
INFER = "/v2/models/m/infer"


def make_body(size: int) -> bytes:
    return b'{"parameters": {"metadata": "[]"}, "id": "' + b"x" * size + b'"}'


def count_unstripped() -> float:
    name = "inference_store_proxy_unstripped_calls_total"
    return SHOWN["proxy"].get_sample_value(name, {"why": "no_room"}) or 0


async def test_strips_metadata() -> None:
    server, large = RecordingHandler(), b"x" * 3_000_000
    body = b'{"inputs": [], "parameters": {"metadata": "[]", "a": 1.0}, "id": "7"}'
    async with start_line(server, model=STRIPS) as line:
        await send_raw(line.port, encode_request("POST", INFER, body))
        exchange = await line.captures.exchange()
        await send_raw(line.port, encode_request("POST", INFER, make_body(len(large))))
    assert exchange.request.bytes == body
    assert [json.loads(received) for received in server.bodies] == [
        {"inputs": [], "parameters": {"a": 1.0}, "id": "7"},
        {"parameters": {}, "id": large.decode()},
    ]


async def test_all_requests_share_the_room() -> None:
    server, before, size = RecordingHandler(8), count_unstripped(), 300_000
    async with start_line(server, model=STRIPS, strip_bytes=1_000_000) as line:
        request = encode_request("POST", INFER, make_body(size))
        answers = await asyncio.gather(*(send_raw(line.port, request) for _ in range(8)))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    whole = [body for body in server.bodies if body == make_body(size)]
    others = [json.loads(body) for body in server.bodies if body != make_body(size)]
    assert all(document == {"parameters": {}, "id": "x" * size} for document in others)
    assert len(whole) >= 5
    assert count_unstripped() - before == len(whole)


async def test_without_room_bodies_pass_unchanged() -> None:
    server = RecordingHandler()
    body = make_body(200_000)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    packed = gzip.compress(body)
    async with start_line(server, model=STRIPS, strip_bytes=100) as line:
        await send_raw(
            line.port, encode_request("POST", INFER, chunked, "Transfer-Encoding: chunked")
        )
        await send_raw(line.port, encode_request("POST", INFER, packed, "Content-Encoding: gzip"))
        await send_raw(line.port, encode_request("POST", INFER, make_body(10)))
    assert server.bodies[:2] == [body, packed]
    assert server.headers[1]["content-length"] == str(len(packed))
    assert json.loads(server.bodies[2]) == {"parameters": {}, "id": "x" * 10}
