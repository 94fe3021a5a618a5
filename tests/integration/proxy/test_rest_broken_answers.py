"""What a caller is told, and what is noted, where the upstream's answer is none of HTTP."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from socket import SO_LINGER, SOL_SOCKET

import orjson
import pytest

from .rest_server import DEADLINE, Kept, proxy, raw

REQUEST = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(
    first: bytes, second: bytes = b"", *, go_on: asyncio.Event | None = None
) -> AsyncIterator[int]:
    """The port of an upstream that answers so, the second part once it shall go on, and leaves."""

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


def _said(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], orjson.loads(body)["error"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 742 Odd\r\nContent-Length: 3\r\n\r\nabc", "the status 742"),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "the status 999"),
        (b"HTTP/1.1 600 Odd\r\nTransfer-Encoding: chunked\r\n\r\n", "the status 600"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 3\r\n\r\nabc", "the status 99"),
        (b"HTTP/1.1 101 Switch\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "the status 101"),
        (b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 3\r\n\r\nabc", "control characters"),
    ],
    ids=["742", "999", "600", "099", "101", "control"],
)
async def test_an_answer_that_cannot_be_written_is_a_bad_gateway(answer: bytes, why: str) -> None:
    kept = Kept()
    async with answering(answer) as port, proxy(port, kept) as before:
        line, error = _said(await raw(before, REQUEST))
        exchange = await kept.first()
    assert line == b"HTTP/1.1 502 Bad Gateway"
    assert why in error
    assert (exchange.error, exchange.http_status) == (error, None)


async def test_what_the_server_says_on_the_way_is_not_its_answer() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answer = b"HTTP/1.1 599 Odd\r\nContent-Length: 3\r\n\r\nabc"
    async with answering(hints + answer) as port, proxy(port, Kept()) as before:
        told = await raw(before, REQUEST)
    assert told.startswith(b"HTTP/1.1 599 ")
    assert told.endswith(b"\r\n\r\nabc")


async def test_trailers_of_an_answer_are_dropped() -> None:
    answer = CHUNKED + b"3\r\nabc\r\n0\r\nX-Late: 1\r\n\r\n"
    async with answering(answer) as port, proxy(port, Kept()) as before:
        told = await raw(before, REQUEST)
    assert told.startswith(b"HTTP/1.1 200 ")
    assert told.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"SECRET\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nSECRET(: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\nabc",
        CHUNKED + b"SECRET\r\n",
    ],
    ids=["line", "header", "length", "chunk"],
)
async def test_what_is_no_http_is_not_quoted(
    answer: bytes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with answering(answer) as port, proxy(port, kept := Kept()) as before:
        line, error = _said(await raw(before, REQUEST))
        exchange = await kept.first()
    assert line == b"HTTP/1.1 502 Bad Gateway"
    assert exchange.error == error == "the upstream one cannot be reached: ClientResponseError"
    assert "SECRET" not in caplog.text + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "broken", [b"SECRET\r\n", b"6\r\nSECRET!!!\r\n", b"6\r\nSEC"], ids=["size", "end", "short"]
)
async def test_an_answer_whose_framing_breaks_in_its_middle_breaks_off(
    broken: bytes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on, kept = asyncio.Event(), Kept()
    first = CHUNKED + b"3\r\nxyz\r\n"
    async with answering(first, broken, go_on=go_on) as port, proxy(port, kept) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        with closing(writer):
            writer.write(REQUEST)
            await asyncio.wait_for(reader.readuntil(b"xyz"), DEADLINE)
            go_on.set()
            rest = await asyncio.wait_for(reader.read(), DEADLINE)
        await writer.wait_closed()
        exchange = await kept.first()
    assert not rest.endswith(b"0\r\n\r\n")
    assert exchange.error == "the upstream one cannot be reached: ClientPayloadError"
    assert not exchange.response.whole
    assert "SECRET" not in caplog.text + "".join(capsys.readouterr())


async def test_a_connection_that_rests_may_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged of one that answers came over before, and the next call takes another."""
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
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(REQUEST)
            await asyncio.wait_for(reader.readuntil(b"xyz"), DEADLINE)
            go_on.set()
            assert await asyncio.wait_for(reader.read(), DEADLINE) == b"def"
        await writer.wait_closed()

    go_on = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, proxy(server.sockets[0].getsockname()[1], Kept()) as before:
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
