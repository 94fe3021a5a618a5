"""The admin port of every service: is it alive, is it ready, how does it do."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from .metrics import BUILD, HEARTBEAT, READY, SHOWN, Service
from .serving import Connections, Limits, Listening, connections_within, current, listen
from .settings import AdminSettings, presenting

# None when the part is ready, else one sentence that says why it is not.
Check = Callable[[], Awaitable[str | None]]
# Less than a probe's patience: what the service can do without may not make it unready by silence.
SPARE_SECONDS = 2.0
_MOST: Final = 128
"""Connections."""
_LIMITS: Final = Limits(head=20.0, idle=120.0, write=30.0)
_log = structlog.get_logger()


@dataclass(slots=True)
class Heartbeat:
    """When each of the service's loops last turned; live only while all of them do."""

    limit_seconds: float = 60.0
    _last: dict[str, float] = field(default_factory=lambda: {"loop": time.monotonic()})

    def beat(self, loop: str = "loop") -> None:
        """The loop turned."""
        self._last[loop] = time.monotonic()

    def rest(self, loop: str) -> None:
        """The loop has nothing to do: until it beats again it need not turn."""
        self._last.pop(loop, None)

    @property
    def age_seconds(self) -> float:
        """Time since the slowest of the loops last turned."""
        return time.monotonic() - min(self._last.values())


class AdminApp:
    """`/health/live`, `/health/ready` and `/metrics`, the same for every service."""

    def __init__(
        self,
        service: Service,
        checks: Mapping[str, Check],
        heartbeat: Heartbeat,
        *,
        spares: Mapping[str, Check] | None = None,
        metrics: Collector | None = None,
    ) -> None:
        """`checks` make the service ready; `spares` are named too, but it works without them.
        `metrics`: what is shown, by default the service's registry of this process."""
        self._registry = metrics or SHOWN[service]
        self._checks = checks
        self._spares = spares or {}
        self._asked: dict[str, asyncio.Task[str | None]] = {}
        self._heartbeat = heartbeat
        self._service = service
        self._runner: web.AppRunner | None = None
        self._listening: Listening | None = None
        self.port = 0
        BUILD.labels(version("inference-store")).set(1)

    async def start(self, host: str, port: int, settings: AdminSettings) -> None:
        """Listen; `port` 0 takes any free one, told by `self.port`. Raises PortTaken."""
        app = web.Application(middlewares=[_told])
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        sockets = listen(host, port, named=f"{self._service.upper()}_ADMIN", backlog=_MOST)
        server: Any = self._runner.server
        connections = Connections("admin", connections_within(_MOST), _MOST // 2)
        self._listening = Listening(sockets, server, connections, _LIMITS, _tls(settings))
        self.port = sockets[0].getsockname()[1]
        _log.info("admin port open", action="admin_listening", host=host, port=self.port)

    async def stop(self) -> None:
        """Stop listening."""
        for task in self._asked.values():
            task.cancel()
        if self._listening is not None:
            await self._listening.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        beat = self._heartbeat
        if beat.age_seconds > beat.limit_seconds:
            reason = f"the loop has not turned for {beat.age_seconds:.0f} s"
            return web.json_response({"live": False, "reason": reason}, status=503)
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        parts = {name: await check() for name, check in self._checks.items()}
        ready = all(reason is None for reason in parts.values())
        found = await asyncio.gather(*(self._spare(name) for name in self._spares))
        parts |= dict(zip(self._spares, found, strict=True))
        for name, reason in parts.items():
            READY.labels(name).set(reason is None)
        body = {
            "ready": ready,
            "parts": {name: reason or "ready" for name, reason in parts.items()},
        }
        return web.json_response(body, status=200 if ready else 503)

    async def _spare(self, name: str) -> str | None:
        """One look at a time, however long it takes: a silent server holds one, not one a probe."""
        task = self._asked.get(name)
        if task is None or task.done():
            task = self._asked[name] = asyncio.ensure_future(self._spares[name]())
        await asyncio.wait([task], timeout=SPARE_SECONDS)
        return task.result() if task.done() else f"no answer within {SPARE_SECONDS:g} s"

    async def _metrics(self, _: web.Request) -> web.Response:
        HEARTBEAT.set(self._heartbeat.age_seconds)
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say to the connection when it answers."""
    connection = current()
    if connection is None:
        return await handler(request)
    connection.begin()
    try:
        return await handler(request)
    finally:
        connection.end()


def _tls(settings: AdminSettings) -> ssl.SSLContext | None:
    certificate, key = settings.admin_tls_certificate_file, settings.admin_tls_key_file
    return None if certificate is None or key is None else presenting(certificate, key)
