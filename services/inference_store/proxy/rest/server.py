"""The serving port: it belongs to the upstream, nothing of ours is on it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import Final

import structlog
import uvicorn

from .forwarding import Forwarding
from .heads import BoundedHeads

_BACKLOG: Final = 2048
_log = structlog.get_logger()


class Server(uvicorn.Server):
    """Says which port it has, once it listens; stops when `should_exit` is set."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.port = 0
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # who started us is told, and stops gRPC as well

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        for server in getattr(self, "servers", ()):
            for listening in server.sockets:
                host, self.port = listening.getsockname()[:2]
                _log.info("proxy open", action="proxy_listening", host=host, port=self.port)
        self.listening.set()


def server_of(
    app: Forwarding,
    *,
    host: str,
    port: int,
    grace_seconds: float,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Server:
    """A server of one application; its calls have `grace_seconds` to end when it stops."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        http=BoundedHeads,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    return Server(config)
