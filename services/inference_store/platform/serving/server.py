"""uvicorn, on connections that are counted and have limits."""

import asyncio
from collections.abc import Sequence
from socket import socket
from typing import Any

import structlog
import uvicorn

from .connections import Connections
from .guarded import Limits
from .listening import Listening

_log = structlog.get_logger()


class GuardedServer(uvicorn.Server):
    """Serves what comes over the sockets given; `open` once it takes connections."""

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
        self._listening: Listening | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin; uvicorn itself listens nowhere."""
        await super().startup(sockets or [])
        tls, loop = self.config.ssl, asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = make(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )
            return made

        self._listening = Listening(
            self._own_sockets, protocol, self._connections, self._limits, tls
        )
        for each in self._own_sockets:
            host, port = each.getsockname()[:2]
            action = f"{self._connections.port}_listening"
            _log.info(f"{self._connections.port} open", action=action, host=host, port=port)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Take no more connections, and let those end that there are."""
        if self._listening is not None:
            await self._listening.stop()
        await super().shutdown(sockets)
