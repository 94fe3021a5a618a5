"""The admin port of every service: liveness, readiness and metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from inference_store.platform.metrics import (
    BUILD,
    HEARTBEAT,
    READY,
    SHOWN,
    Service,
)
from inference_store.platform.settings import AdminSettings

from .serving import (
    Connections,
    Heartbeat,
    Limits,
    Receive,
    Scope,
    Send,
    connections_within,
    listen,
)
from .uvicorn_server import GuardedServer, build_config

_Answer: TypeAlias = tuple[int, str, bytes]  # status, media type, body
_JSON: Final = "application/json"
# Returns None if the part is ready, else one sentence with the reason.
Check = Callable[[], Awaitable[str | None]]
# Less than a probe's timeout: a part that does not answer is the reason, and not the probe's own.
PART_SECONDS = 2.0
_MOST: Final = 128
"""The most connections."""
_LIMITS: Final = Limits(idle=120.0, write=30.0)


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
        self._server: GuardedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = 0
        BUILD.labels(version("inference-store")).set(1)

    async def start(self, host: str, port: int, settings: AdminSettings) -> None:
        """Listen; `port` 0 takes any free one, which is then in `self.port`. Raises PortTaken."""
        own = f"{self._service.upper()}_ADMIN"
        sockets = listen(host, port, setting=own, host_setting="ADMIN", backlog=_MOST)
        self.port = sockets[0].getsockname()[1]
        connections = Connections("admin", connections_within(_MOST), _MOST // 2)
        files = settings.admin_tls_certificate_file, settings.admin_tls_key_file
        more: dict[str, Any] = {"lifespan": "off", "log_level": "warning"}
        config = build_config(self._answer, files, grace_seconds=2, **more)
        self._server = GuardedServer(config, sockets, connections, _LIMITS)
        self._serving = asyncio.create_task(self._server.serve())

    async def stop(self) -> None:
        """Stop listening."""
        for task in self._running_checks.values():
            task.cancel()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _answer(self, scope: Scope, _receive: Receive, send: Send) -> None:
        routes = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._metrics,
        }
        status, kind, body = 404, "text/plain", b"404: Not Found\n"
        more: list[tuple[bytes, bytes]] = []
        if (route := routes.get(scope["path"])) is not None:
            if scope["method"] in {"GET", "HEAD"}:
                status, kind, body = await route()
            else:
                status, body, more = 405, b"405: Method Not Allowed\n", [(b"allow", b"GET, HEAD")]
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _live(self) -> _Answer:
        beat = self._heartbeat
        if beat.age_seconds > beat.limit_seconds:
            reason = f"the loop has not turned for {beat.age_seconds:.0f} s"
            return 503, _JSON, orjson.dumps({"live": False, "reason": reason})
        return 200, _JSON, orjson.dumps({"live": True})

    async def _ready(self) -> _Answer:
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
        return 200 if ready else 503, _JSON, orjson.dumps(body)

    async def _check(self, name: str, check: Check) -> str | None:
        """Run one check at a time, however long it takes: a silent server blocks one, not one per
        probe."""
        task = self._running_checks.get(name)
        if task is None or task.done():
            task = self._running_checks[name] = asyncio.ensure_future(check())
        await asyncio.wait([task], timeout=PART_SECONDS)
        return task.result() if task.done() else f"no answer within {PART_SECONDS:g} s"

    async def _metrics(self) -> _Answer:
        HEARTBEAT.set(self._heartbeat.age_seconds)
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
