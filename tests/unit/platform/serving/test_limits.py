"""Connections that take too long are closed; those that are served are not."""

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from inference_store.platform import admin_port, serving
from inference_store.platform.metrics import SHOWN
from inference_store.platform.settings import AdminSettings
from inference_store.platform.uvicorn_server import BoundedHeads, GuardedServer
from tests.polling import until
from tests.servers.certificates import Authority, Pair
from tests.settings import make_settings

from .stepped_loop import HELD_SECONDS, stepped

SHORT, LONG = 2 * HELD_SECONDS, 100 * HELD_SECONDS
BIG = 64 << 20
HEAD = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GET = HEAD % (b"", 0)
CLOSE = b"\r\nConnection: close\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer with its size: late or with much data if the request says so."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/later":
        stepped().advance(2 * SHORT)
        await asyncio.sleep(0)  # what is due runs first
    body = bytes(BIG) if scope["path"] == "/much" else b"%d" % size
    headers = [(b"content-length", b"%d" % len(body))]
    headers = [] if scope["path"] == "/chunked" else headers
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    with suppress(OSError):  # it is not read
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serve(
    http: Any = BoundedHeads, *, most: int = 9, own: Pair | None = None, **limits: float
) -> AsyncIterator[int]:
    """The port of a server; limits that are not given are long."""
    seconds = {"head": LONG, "body": LONG, "idle": LONG, "write": LONG} | limits
    config = uvicorn.Config(
        app,
        http=http,
        lifespan="off",
        log_config=None,
        interface="asgi3",
        timeout_keep_alive=int(LONG),
        ssl_certfile=None if own is None else own.certificate,
        ssl_keyfile=None if own is None else own.key,
    )
    sockets = serving.listen("127.0.0.1", 0, setting="API")
    server = GuardedServer(
        config, sockets, serving.Connections("api", most, most), serving.Limits(**seconds)
    )
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await until(started, bool)
    try:
        yield sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def ask_status(host: str, port: int, trusting: ssl.SSLContext | None = None) -> bytes:
    """Return the first bytes of an answer; b"" if there is none."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(host, port, ssl=trusting)
        with closing(writer):
            writer.write(GET)
            return await reader.read(12)
    return b""


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    with closing(writer):
        yield reader, writer


async def exchange(port: int, *parts: bytes, drip: bytes = b"", step: float = 0) -> bytes:
    """Return all bytes until the connection is closed. Once a timer of SHORT seconds runs, a drip
    is sent every `step` seconds."""
    async with connect(port) as (reader, writer):

        async def send() -> None:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0)
            if step:
                await pass_timer(SHORT, 1.01 * SHORT, seconds=0)
            for _ in range(int(1.5 * SHORT / step) if step else 0):
                writer.write(drip)
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # what was written has been read
                stepped().advance(step)

        sending = asyncio.create_task(send())
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            sending.cancel()


async def pass_timer(least: float, most: float | None = None, *, seconds: float = SHORT) -> None:
    """Wait for a timer of a connection with a delay between these, and let time pass."""

    async def is_held() -> bool:
        return stepped().is_held(least, most or least)

    await until(is_held, bool)
    stepped().advance(seconds)


def read_late_count(what: str, port: str = "api") -> float:
    labels = {"port": port, "late": what}
    return SHOWN["api"].get_sample_value("inference_store_connections_late_total", labels) or 0


@contextmanager
def late_once(what: str, port: str = "api") -> Iterator[None]:
    """Check that one connection is counted as late meanwhile."""
    before = read_late_count(what, port)
    yield
    assert read_late_count(what, port) == before + 1


async def test_a_head_that_does_not_end_is_not_waited_for() -> None:
    for drip in (b"", b"a"):
        head = b"GET / HTTP/1.1\r\nX: " if drip else b""
        with late_once("head"):
            async with serve(head=SHORT) as port:
                assert await exchange(port, head, drip=drip, step=SHORT / 10) == b"", drip


async def test_bounds_the_head_alone_and_ends_an_answer_without_a_length() -> None:
    body = b"a" * 50_000
    async with serve(partial(BoundedHeads, most_head_bytes=1000)) as port:
        assert await exchange(port, b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 500) == b""
        whole = HEAD % (b"", len(body)) + body + GET.replace(b"\r\n\r\n", CLOSE)
        assert (await exchange(port, whole)).count(b"HTTP/1.1 200") == 2
    async with serve() as port:
        response = await exchange(port, b"GET /chunked HTTP/1.0\r\nHost: x\r\n\r\n")
    assert b"transfer-encoding" not in response.lower()
    assert response.endswith(b"\r\n\r\n0")


async def test_a_body_is_waited_for_by_its_size_and_an_answer_may_take_its_time() -> None:
    with late_once("body"):
        async with serve(body=SHORT) as port:
            assert await exchange(port, HEAD % (b"", BIG), drip=b"a", step=SHORT / 10) == b""
    first = b"a" * 1_000_000  # gives it 2000 s
    async with serve(body=SHORT, idle=SHORT) as port, connect(port) as (reader, writer):
        writer.write(HEAD % (b"", len(first) + 1) + first)
        await pass_timer(4 * SHORT, 20 * SHORT, seconds=2 * SHORT)
        writer.write(b"a")
        assert await reader.readuntil(b"1000001")
    async with serve(head=SHORT, idle=SHORT) as port, connect(port) as (reader, writer):
        writer.write(HEAD % (b"later", 2) + b"{}")
        assert await reader.readuntil(b"\r\n\r\n2")


async def test_a_connection_is_kept_between_requests_and_no_longer() -> None:
    for late, begin in (("idle", b""), ("head", b"G")):
        limit: Any = {late: SHORT}
        with late_once(late):
            async with serve(**limit) as port, connect(port) as (reader, writer):
                for _ in range(2):
                    writer.write(GET)
                    assert await reader.readuntil(b"\r\n\r\n0")
                writer.write(begin)
                await pass_timer(SHORT)
                assert await reader.read() == b""


async def test_gives_up_an_answer_that_is_not_read() -> None:
    before = read_late_count("write")
    async with serve(write=SHORT) as port, connect(port) as (_, writer):
        writer.write(HEAD % (b"much", 0))
        await pass_timer(SHORT)

        async def is_counted() -> bool:
            return read_late_count("write") == before + 1

        await until(is_counted, bool)


async def test_connections_are_bounded_and_a_failed_handshake_leaves_none(tmp_path: Path) -> None:
    async with serve(most=2) as port:
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await exchange(port, GET) == b""  # refused
        connections[0][1].close()
        await until(partial(ask_status, "127.0.0.1", port), b"HTTP/1.1 200".__eq__)
        connections[1][1].close()
    authority = Authority(tmp_path)
    async with serve(most=1, own=authority.issue("server")) as port:
        for _ in range(3):
            await exchange(port, b"no TLS at all\r\n\r\n")
        trusting = ssl.create_default_context(cafile=str(authority.ca_file))
        await until(partial(ask_status, "localhost", port, trusting), b"HTTP/1.1 200".__eq__)


async def test_there_are_so_many_connections_at_once_and_for_one_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = serving.Connections("proxy", 4, 2)
    assert [connections.take("a") for _ in range(3)] == [True, True, False]
    assert [connections.take("b") for _ in range(3)] == [True, True, False]
    assert not connections.take("c")
    connections.release("a")
    assert connections.take("c")
    assert not connections.take("a")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert [serving.connections_within(wanted, shares=2) for wanted in (9, 9999)] == [9, 384]
    full = serving.Connections("proxy", 1, 1)
    assert await full.why_full() is None
    full.take("a")
    assert "all 1 connections are taken" in str(await full.why_full())


def test_a_port_that_is_taken_is_named_with_its_settings() -> None:
    [there] = serving.listen("127.0.0.1", 0, setting="API")
    with there, pytest.raises(serving.PortTaken) as refused:
        serving.listen("127.0.0.1", there.getsockname()[1], setting="API")
    assert str(refused.value).endswith(
        "Address already in use. Change INFERENCE_STORE_API_HOST and INFERENCE_STORE_API_PORT."
    )


async def test_the_admin_port_has_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = serving.Limits(head=SHORT, idle=2 * SHORT)
    monkeypatch.setattr("inference_store.platform.admin_port._LIMITS", limits)
    admin = admin_port.AdminApp("api", {}, serving.Heartbeat())
    await admin.start("127.0.0.1", 0, make_settings(AdminSettings))
    try:
        with late_once("head", "admin"):
            assert await exchange(admin.port, b"GET /health", step=SHORT) == b""
        with late_once("idle", "admin"):
            async with connect(admin.port) as (reader, writer):
                writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                await pass_timer(2 * SHORT, seconds=2 * SHORT)
                await reader.read()
    finally:
        await admin.stop()
