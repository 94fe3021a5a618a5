"""The admin port of every service: liveness, readiness and metrics."""

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
from .serving import Connections, Limits, Listener, connections_within, current, listen
from .settings import AdminSettings, presenting

# Returns None if the part is ready, else one sentence with the reason.
Check = Callable[[], Awaitable[str | None]]
# Less than a probe's timeout: a part that does not answer is the reason, and not the probe's own.
PART_SECONDS = 2.0
_MOST: Final = 128
"""The most connections."""
_LIMITS: Final = Limits(head=20.0, idle=120.0, write=30.0)
_log = structlog.get_logger()


@dataclass(slots=True)
class Heartbeat:
    """The last turn of each of the service's loops; the service is live only while all of them
    turn."""

    limit_seconds: float = 60.0
    _last: dict[str, float] = field(default_factory=lambda: {"loop": time.monotonic()})

    def beat(self, loop: str = "loop") -> None:
        """Note a turn of a loop."""
        self._last[loop] = time.monotonic()

    def rest(self, loop: str) -> None:
        """Note that a loop is idle: it need not turn until its next beat."""
        self._last.pop(loop, None)

    @property
    def age_seconds(self) -> float:
        """Seconds since the last turn of the slowest loop."""
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
        """`checks` decide whether the service is ready; `spares` are reported, too, but not needed.
        `metrics`: the metrics to show, by default the service's registry of this process."""
        self._registry = metrics or SHOWN[service]
        self._checks = checks
        self._spares = spares or {}
        self._running_checks: dict[str, asyncio.Task[str | None]] = {}
        self._heartbeat = heartbeat
        self._service = service
        self._runner: web.AppRunner | None = None
        self._listening: Listener | None = None
        self.port = 0
        BUILD.labels(version("inference-store")).set(1)

    async def start(self, host: str, port: int, settings: AdminSettings) -> None:
        """Listen; `port` 0 takes any free one, which is then in `self.port`. Raises PortTaken."""
        app = web.Application(middlewares=[_mark_answering])
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        own = f"{self._service.upper()}_ADMIN"
        sockets = listen(host, port, setting=own, host_setting="ADMIN", backlog=_MOST)
        server: Any = self._runner.server
        connections = Connections("admin", connections_within(_MOST), _MOST // 2)
        self._listening = Listener(sockets, server, connections, _LIMITS, _tls(settings))
        self.port = sockets[0].getsockname()[1]
        _log.info("admin port open", action="admin_listening", host=host, port=self.port)

    async def stop(self) -> None:
        """Stop listening."""
        for task in self._running_checks.values():
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
        checks = {**self._checks, **self._spares}
        reasons = await asyncio.gather(*(self._check(*part) for part in checks.items()))
        parts = dict(zip(checks, reasons, strict=True))
        ready = all(parts[name] is None for name in self._checks)
        for name, reason in parts.items():
            READY.labels(name).set(reason is None)
        body = {
            "ready": ready,
            "parts": {name: reason or "ready" for name, reason in parts.items()},
        }
        return web.json_response(body, status=200 if ready else 503)

    async def _check(self, name: str, check: Check) -> str | None:
        """Run one check at a time, however long it takes: a silent server blocks one, not one per
        probe."""
        task = self._running_checks.get(name)
        if task is None or task.done():
            task = self._running_checks[name] = asyncio.ensure_future(check())
        await asyncio.wait([task], timeout=PART_SECONDS)
        return task.result() if task.done() else f"no answer within {PART_SECONDS:g} s"

    async def _metrics(self, _: web.Request) -> web.Response:
        HEARTBEAT.set(self._heartbeat.age_seconds)
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


@web.middleware
async def _mark_answering(request: web.Request, handler: Handler) -> web.StreamResponse:
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
