"""A model server of a test, and the REST side of the proxy in front of it, in this process."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from inference_store.platform.serving import Connections
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.configuration import Configuration, Rules, UpstreamEntry
from inference_store.proxy.event_intake import EventIntake
from inference_store.proxy.rest import Forwarding, build_server
from inference_store.proxy.rest_messages import Stripping, open_upstreams
from inference_store.proxy.routing import PathPrefixes, Routing
from tests.fake_captures import FakeCaptures
from tests.polling import until
from tests.servers.certificates import Pair
from tests.servers.ports import free_port
from tests.settings import make_settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DEADLINE = 300.0
EVENTS = "/cloudevents"


@asynccontextmanager
async def upstream(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Start a model server that answers everything with `handler`; yield its port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(
        app, auto_decompress=False, shutdown_timeout=0.1, handler_cancellation=True
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxy(
    port: int,
    captures: FakeCaptures | None = None,
    *,
    model: Rules | None = None,
    own: Pair | None = None,
    strip_bytes: int = 1 << 26,
    events: Mapping[str, Any] | None = None,
    **upstream: Any,
) -> AsyncIterator[int]:
    """Start a proxy in front of the model server at `port`, and yield its port.

    It serves TLS if it has a certificate of its `own`, and takes events at EVENTS if there are
    settings for them.
    """
    fields: dict[str, Any] = {
        "url": f"http://127.0.0.1:{port}",
        "read_seconds": DEADLINE,
        # a connection stays open between two calls, however long the machine stalls
        "keepalive_seconds": DEADLINE,
        **upstream,
    }
    entry = UpstreamEntry(name="one", protocols=("v2",), **fields)
    prefixes = PathPrefixes(["/api/serve/serve-model-*-pred"])
    logger = UpstreamEntry(name="logger", cloud_events=EVENTS)
    entries = [entry] if events is None else [logger, entry]
    routing = Routing(Configuration(entries, [model] if model else []), prefixes)
    recording: Any = captures or FakeCaptures()
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_host="127.0.0.1",
        proxy_port=free_port(),
        proxy_tls_certificate_file=None if own is None else own.certificate,
        proxy_tls_key_file=None if own is None else own.key,
        **(events or {}),
    )
    intake = EventIntake(entries, recording, settings)
    stripping = Stripping(strip_bytes)
    async with open_upstreams([entry]) as upstreams:
        app = Forwarding(routing, upstreams, recording, stripping, intake)
        server = build_server(app, settings, Connections("proxy", 1000, 1000), grace_seconds=1)
        serving = asyncio.create_task(server.serve())
        try:
            await until(lambda: _is_open(settings.proxy_port), bool, seconds=DEADLINE)
            yield settings.proxy_port
        finally:
            server.should_exit = True
            await serving
            intake.close()
    assert stripping.free == strip_bytes


async def _is_open(port: int) -> bool:
    with suppress(ConnectionError):
        (await asyncio.open_connection("127.0.0.1", port))[1].close()
        return True
    return False


@dataclass
class Line:
    direct: int
    port: int
    captures: FakeCaptures


@asynccontextmanager
async def start_line(
    handler: Handler, captures: FakeCaptures | None = None, **options: Any
) -> AsyncIterator[Line]:
    """Start a model server that answers with `handler`, and a proxy in front of it."""
    captures = captures or FakeCaptures()
    async with upstream(handler) as direct, proxy(direct, captures, **options) as port:
        yield Line(direct, port, captures)


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(2 * DEADLINE)
    raise AssertionError("nobody waits for so long")


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.send, self.send_eof, self.close = writer.write, writer.write_eof, writer.close

    async def read_until(self, end: bytes = b"\r\n\r\n") -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(end), DEADLINE)

    async def read_all(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), DEADLINE)


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def send_raw(port: int, request: bytes) -> bytes:
    """Send bytes to a server; return its answer until it closes the connection."""
    async with connect(port) as caller:
        caller.send(request)
        return await caller.read_all()


def encode_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """Encode a request after which the connection is closed."""
    lines = [f"{method} {path} HTTP/1.1", "Host: models.example", "Connection: close", *headers]
    is_chunked = any(header.startswith("Transfer-Encoding") for header in headers)
    if not is_chunked and (body or method == "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def split_answer(answer: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Return the status line, the headers without those of one connection, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    pairs = (line.split(b": ", 1) for line in lines)
    headers = sorted((name.lower(), value) for name, value in pairs)
    own = {b"connection", b"date", b"transfer-encoding", b"keep-alive", b"inference-store-id"}
    return status, [pair for pair in headers if pair[0] not in own], body
