"""The api on a real port, for what a client in the same process cannot see."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

from tests.polling import until

# Fixed, for the kernel may let a connection's buffers grow to 32 MiB: a server could have sent
# all that a test has before its client reads on.
_BUFFER_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"
# Compressed, all that a test has would fit into these buffers.
_UNCOMPRESSED = {"Accept-Encoding": "identity"}


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the test's


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, over TCP with small buffers; answers are not compressed."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    server = _Server(config)
    listener = _listener()
    task = asyncio.create_task(server.serve(sockets=[listener]))

    async def started() -> bool:
        return server.started or task.done()

    await until(started, bool)
    small = httpx.AsyncHTTPTransport(
        socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)]
    )
    address = f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(
            base_url=address, headers=_UNCOMPRESSED, timeout=120, transport=small
        ) as client:
            yield client
    finally:
        server.should_exit = server.force_exit = True
        await task


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    listener.bind((_LOOPBACK, 0))
    return listener
