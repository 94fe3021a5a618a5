"""uvicorn on counted connections with limits."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from socket import socket
from typing import Any

import structlog
import uvicorn

from inference_store.platform.settings import presenting

from .connections import Connections
from .guarded_connection import Limits
from .listener import Listener

_log = structlog.get_logger()


class GuardedServer(uvicorn.Server):
    """Serves requests over the given sockets; logs `open` once it takes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[socket],
        connections: Connections,
        limits: Limits,
    ) -> None:
        super().__init__(config)
        self._own_sockets = sockets
        self._connections = connections
        self._limits = limits
        self._listening: Listener | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start serving; uvicorn itself does not listen."""
        await super().startup(sockets or [])
        loop = asyncio.get_running_loop()
        # uvicorn's own would never read renewed files
        certificate, key = self.config.ssl_certfile, self.config.ssl_keyfile
        tls = presenting(Path(certificate), Path(key)) if certificate and key else None
        make: Any = self.config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            connection_protocol: asyncio.Protocol = make(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )
            return connection_protocol

        self._listening = Listener(
            self._own_sockets, protocol, self._connections, self._limits, tls
        )
        for listening in self._own_sockets:
            host, port = listening.getsockname()[:2]
            action = f"{self._connections.port}_listening"
            _log.info(f"{self._connections.port} open", action=action, host=host, port=port)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Take no more connections, and let the open ones end."""
        if self._listening is not None:
            await self._listening.stop()
        await super().shutdown(sockets)
