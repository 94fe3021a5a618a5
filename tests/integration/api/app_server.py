"""The api on a real port, for tests that need a TCP connection."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import uvicorn
from starlette.types import ASGIApp

from tests.polling import until

# Fixed, since the kernel may let the buffers of a connection grow to 32 MiB: a server could send
# all data of a test before its client reads on.
_BUFFER_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"
# A connection stays open between two requests, however long the machine stalls: one that the server
# closes as the next request is on its way fails it.
_KEPT_SECONDS = 600
# Compressed, all data of a test would fit into these buffers.
_UNCOMPRESSED = {"Accept-Encoding": "identity"}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the test


@asynccontextmanager
async def serve_app(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an app over TCP with small buffers; yield a client whose answers are not compressed."""
    config = uvicorn.Config(
        app, log_level="critical", lifespan="off", timeout_keep_alive=_KEPT_SECONDS
    )
    server = _Server(config)
    listener = _open_listener()
    task = asyncio.create_task(server.serve(sockets=[listener]))

    async def is_started() -> bool:
        return server.started or task.done()

    await until(is_started, bool)
    small_buffers = httpx.AsyncHTTPTransport(
        socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)]
    )
    address = f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(
            base_url=address, headers=_UNCOMPRESSED, timeout=120, transport=small_buffers
        ) as client:
            yield client
    finally:
        server.should_exit = server.force_exit = True
        await task


def _open_listener() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    listener.bind((_LOOPBACK, 0))
    return listener
