"""Answers of an upstream that are not valid HTTP: what the caller gets, and what is captured."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from socket import SO_LINGER, SOL_SOCKET

import orjson
import pytest

from .rest_server import DEADLINE, FakeCaptures, connect, encode_request, proxy, send_raw

REQUEST = encode_request("POST", "/v2/models/m/infer", b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


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
        (CHUNKED + b"SECRET\r\n", _INVALID),
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
        exchange = await captures.wait_for_first()
    assert line == b"HTTP/1.1 502 Bad Gateway"
    assert error == why if why is _INVALID else why in error
    assert (exchange.error, exchange.http_status) == (error, None)
    assert "SECRET" not in caplog.text + "".join(capsys.readouterr())


async def test_skips_interim_responses() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answer = b"HTTP/1.1 599 Odd\r\nContent-Length: 3\r\n\r\nabc"
    async with start_upstream(hints + answer) as port, proxy(port, FakeCaptures()) as before:
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
            writer.write(CHUNKED + b"3\r\nabc\r\n0\r\nX-Late: of another caller\r\n\r\n")
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxy(port, FakeCaptures()) as before:
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
    first = CHUNKED + b"3\r\nxyz\r\n"
    async with start_upstream(first, broken, go_on=go_on) as port, proxy(port, captures) as before:
        async with connect(before) as caller:
            caller.send(REQUEST)
            await caller.read_until(b"xyz")
            go_on.set()
            rest = await caller.read_all()
        exchange = await captures.wait_for_first()
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
    async with server, proxy(server.sockets[0].getsockname()[1], FakeCaptures()) as before:
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
