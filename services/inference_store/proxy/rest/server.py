"""The serving port: all its paths belong to the upstream."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import Final

import uvicorn

from inference_store.platform.serving import Connections, Limits, Served, listen
from inference_store.platform.uvicorn_server import GuardedServer

from .forwarding import Forwarding
from .heads import ForwardedHeads

_BACKLOG: Final = 2048


class Server(GuardedServer):
    """A server that reports when it listens, and stops when `should_exit` is set."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[socket],
        connections: Connections,
        limits: Limits,
    ) -> None:
        super().__init__(config, sockets, connections, limits)
        self.port: int = sockets[0].getsockname()[1]
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the caller handles signals, and stops gRPC as well

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def build_server(
    app: Forwarding,
    *,
    host: str,
    port: int,
    grace_seconds: float,
    connections: Connections,
    limits: Limits,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Server:
    """Return the server of one application; its calls have `grace_seconds` to end when it stops.
    Raises PortTaken."""
    sockets = listen(host, port, setting="PROXY", backlog=_BACKLOG)
    config = uvicorn.Config(
        Served(app),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        http=ForwardedHeads,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.idle),
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    return Server(config, sockets, connections, limits)
