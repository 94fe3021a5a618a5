"""The servers that are compared: each is built as the proxy's own is, by the arguments of
`build_server`, and carries the same application in the same event loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Literal

from aiohttp import web
from tests.polling import until
from tests.servers.ports import free_port

from benchmarks.proxy.nginx import is_open
from inference_store.platform.serving import Connections, Limits, Served, listen
from inference_store.platform.serving.heads import MOST_HEAD_BYTES
from inference_store.platform.serving.listener import Listener
from inference_store.platform.serving.request_bodies import App
from inference_store.proxy.rest import build_server
from inference_store.proxy.rest.forwarding import Server

from .aiohttp_asgi import AsgiHandler, Connection
from .environment import find_servers

OURS: Final = "ours"
_BACKLOG: Final = 2048


class CarryingServer(ABC):
    """A server with the attributes of the proxy's own."""

    def __init__(self, app: App, *, host: str, port: int, limits: Limits, **_: Any) -> None:
        self._app = app
        self._host = host
        self.port = port or free_port()
        self._limits = limits
        self.listening = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def should_exit(self) -> bool:
        """Whether it has to stop."""
        return self._stopped.is_set()

    @should_exit.setter
    def should_exit(self, _: bool) -> None:
        self._stopped.set()

    async def serve(self) -> None:
        """Serve until `should_exit` is set."""
        serving = asyncio.create_task(self._serve())

        async def has_begun() -> bool:
            return serving.done() or is_open(self.port)

        await until(has_begun, bool)
        self.listening.set()
        await serving

    @abstractmethod
    async def _serve(self) -> None:
        """Serve until it is stopped."""


class Aiohttp(CarryingServer):
    """aiohttp's server, on the proxy's own connections."""

    def __init__(self, app: App, *, connections: Connections, **options: Any) -> None:
        super().__init__(app, **options)
        self._connections = connections

    async def _serve(self) -> None:
        server = web.Server(AsgiHandler(Served(self._app)))
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": self._limits.idle,
            "max_line_size": MOST_HEAD_BYTES,
            "max_field_size": MOST_HEAD_BYTES,
        }

        def protocol() -> Connection:
            return Connection(server, loop=loop, **options)

        sockets = listen(self._host, self.port, setting="PROXY", backlog=_BACKLOG)
        listener = Listener(sockets, protocol, self._connections, self._limits)
        await self._stopped.wait()
        await listener.stop()
        await server.shutdown(1)


class Hypercorn(CarryingServer):
    """hypercorn, which reads HTTP by h11. It opens its connections itself."""

    async def _serve(self) -> None:
        find_servers()
        config = import_module("hypercorn.config").Config()
        config.bind = [f"{self._host}:{self.port}"]
        config.backlog = _BACKLOG
        config.include_date_header = config.include_server_header = False
        config.keep_alive_timeout = self._limits.idle
        config.keep_alive_max_requests = 1 << 40
        config.h11_max_incomplete_size = MOST_HEAD_BYTES
        config.graceful_timeout = config.shutdown_timeout = 1
        config.errorlog = config.accesslog = None
        serve = import_module("hypercorn.asyncio").serve
        await serve(self._app, config, shutdown_trigger=self._stopped.wait, mode="asgi")


class Granian(CarryingServer):
    """granian within this loop: it reads HTTP in a thread of Rust."""

    async def _serve(self) -> None:
        find_servers()
        embedded = import_module("granian.server.embed")
        settings = import_module("granian.http").HTTP1Settings(
            max_buffer_size=MOST_HEAD_BYTES, header_read_timeout=int(1000 * self._limits.head)
        )
        server = embedded.Server(
            self._app,
            address=self._host,
            port=self.port,
            interface=import_module("granian.constants").Interfaces.ASGINL,
            http=import_module("granian.constants").HTTPModes.http1,
            http1_settings=settings,
            websockets=False,
            backlog=_BACKLOG,
            log_enabled=False,
        )
        serving = asyncio.create_task(server.serve())
        await self._stopped.wait()
        server.stop()
        await serving


def _build_uvicorn(http: Literal["h11", "httptools"]) -> Callable[..., Server]:
    """Return the builder of the proxy's server with uvicorn's own reading of HTTP."""

    def build(app: App, **options: Any) -> Server:
        server = build_server(app, **options)  # type: ignore[arg-type]
        server.config.http = http
        server.config.h11_max_incomplete_event_size = MOST_HEAD_BYTES
        return server

    return build


SERVERS: Final[Mapping[str, Callable[..., Any]]] = {
    OURS: build_server,
    "uvicorn, httptools": _build_uvicorn("httptools"),
    "uvicorn, h11": _build_uvicorn("h11"),
    "hypercorn, h11": Hypercorn,
    "aiohttp": Aiohttp,
    "granian": Granian,
}
"""By name; the first is what the product has."""
