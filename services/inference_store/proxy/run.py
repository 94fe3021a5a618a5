"""Builds the proxy from its settings, and forwards calls until it is stopped.

Order at the end: refuse new calls, finish those in progress, then publish captures, all within one
grace; the log says how many are left.
"""

import asyncio
import gc
import signal
import time
from typing import Any

from inference_store.platform.admin_port import AdminApp
from inference_store.platform.serving import Heartbeat, build_connections, in_background
from inference_store.platform.settings import ProxySettings, UpstreamSettings
from inference_store.platform.uvicorn_server import GuardedServer
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import (
    Configuration,
    build_configuration,
    read_configuration_file,
)
from inference_store.proxy.event_intake import EventIntake
from inference_store.proxy.grpc import Calls, open_grpc_port
from inference_store.proxy.omi_bridge import open_bridges
from inference_store.proxy.rest import Forwarding, build_server
from inference_store.proxy.rest_messages import Stripping, open_upstreams
from inference_store.proxy.routing import PathPrefixes, Routing

_BEAT_SECONDS = 1.0
# The share of the grace for calls in progress; the rest is for captures.
_CALLS_SHARE = 0.5
# Callers over REST, callers over gRPC, and upstreams share the open files.
_OPEN_FILES = 3


async def serve(settings: ProxySettings) -> None:
    """Forward calls until SIGTERM or SIGINT. Raises WrongConfiguration."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    configuration = read_configuration(settings)
    heartbeat = Heartbeat()
    captures = Captures(settings, configuration.models)
    ports = _Ports(settings, captures)
    checks = {
        "ports": ports.why_closed,
        "capture start": captures.find_start_error,
        "connections": ports.connections.why_full,
        "gRPC calls": ports.calls.why_full,
    }
    admin = AdminApp("proxy", checks, heartbeat, spares=captures.waits, metrics=captures.metrics)
    ended: float | None = None
    try:
        await captures.start()
        await admin.start(settings.admin_host, settings.proxy_admin_port, settings)
        # Objects of the start stay: garbage collection skips them.
        gc.collect()
        gc.freeze()
        bridging = open_bridges(configuration, settings.proxy_grpc_message_bytes)
        async with in_background(_keep_beating(heartbeat)), bridging as bridged:
            ended = await ports.serve(bridged, stop)
    finally:
        spent_seconds = 0.0 if ended is None else time.monotonic() - ended
        await captures.stop(max(1.0, settings.proxy_grace_seconds - spent_seconds))
        await admin.stop()


class _Ports:
    """The ports of a proxy: it is ready only while they take calls."""

    def __init__(self, settings: ProxySettings, captures: Captures) -> None:
        self._settings, self._captures = settings, captures
        self.connections = build_connections(settings, "proxy", shares=_OPEN_FILES)
        self.calls = Calls(settings.connections)
        self._rest: GuardedServer | None = None

    async def why_closed(self) -> str | None:
        """Return why the ports are closed; None if they are open. The gRPC port opens first."""
        if self._rest is None or not self._rest.started:
            return "not open yet"
        return "no new calls: the proxy ends" if self._rest.should_exit else None

    async def serve(self, configuration: Configuration, stop: asyncio.Event) -> float:
        """Serve until they have to stop; return when that was (monotonic seconds)."""
        settings, captures = self._settings, self._captures
        routing = Routing(configuration, PathPrefixes(_split_names(settings.proxy_path_prefixes)))
        grace = settings.proxy_grace_seconds * _CALLS_SHARE
        stripping = Stripping(settings.proxy_capture_bytes)
        async with open_upstreams(configuration.upstreams) as upstreams:
            intake = EventIntake(configuration.upstreams, captures, settings)
            app = Forwarding(routing, upstreams, captures, stripping, intake)
            rest = build_server(app, settings, self.connections, grace_seconds=grace)
            limits: dict[str, Any] = {"connections": self.connections, "calls": self.calls}
            close_grpc = await open_grpc_port(settings, configuration, routing, captures, **limits)
            self._rest = rest
            serving = asyncio.create_task(rest.serve())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            ended = time.monotonic()
            rest.should_exit = True
            captures.speed_up()
            await asyncio.gather(serving, close_grpc(grace))
            intake.close()
            stopping.cancel()
            return ended


def read_configuration(settings: UpstreamSettings) -> Configuration:
    """Return the upstreams and models of the file, or else of the settings. Raises
    WrongConfiguration."""
    if settings.proxy_config is not None:
        has_key = bool(settings.proxy_redaction_key.get_secret_value())
        return read_configuration_file(settings.proxy_config, has_key=has_key)
    names = _split_names(settings.proxy_protocols)
    servers = settings.proxy_upstream, settings.proxy_upstream_grpc
    return build_configuration(*servers, names, settings.proxy_cloud_events)


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def _keep_beating(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(_BEAT_SECONDS)
