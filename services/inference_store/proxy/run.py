"""Build the proxy from its settings, and pass calls through until asked to stop.

Order at the end: no new calls, those under way finish, then what was captured is published, all
within one grace; what is left is said.
"""

import asyncio
import gc
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from inference_store.platform.admin import AdminApp, Heartbeat
from inference_store.platform.serving import Connections, connections_of, limits_of
from inference_store.platform.settings import ProxySettings, UpstreamSettings

from .capture import Captures
from .configuration import Configuration, configuration_of, configuration_of_one
from .grpc import Calls
from .grpc_port import GrpcPort
from .omi_bridge import bridged
from .paths import PathPrefixes
from .protocols import PROTOCOLS
from .rest import Forwarding, Server, Stripping, Upstreams, server_of
from .routing import Routing

_BEAT_SECONDS = 1.0
# Of the grace, for calls under way; the rest is for what was captured.
_CALLS_SHARE = 0.5
# Callers over REST, callers over gRPC, and upstreams share what may be open.
_OPEN_FILES = 3
_log = structlog.get_logger()


async def serve(settings: ProxySettings) -> None:
    """Pass calls through until SIGTERM or SIGINT. Raises WrongConfiguration."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    configuration = configured(settings)
    heartbeat = Heartbeat()
    captures = Captures(settings)
    connections = connections_of(settings, "proxy", shares=_OPEN_FILES)
    ports = _Ports(connections, Calls(settings.proxy_grpc_calls))
    checks = {
        "ports": ports.why_closed,
        "connections": connections.why_full,
        "gRPC calls": ports.calls.why_full,
    }
    admin = AdminApp("proxy", checks, heartbeat, spares=captures.waits, metrics=captures.metrics)
    ended: float | None = None
    try:
        await captures.start()
        await admin.start(settings.proxy_admin_host, settings.proxy_admin_port, settings)
        # What starts with it stays: collecting garbage looks at none of it.
        gc.collect()
        gc.freeze()
        async with _beating(heartbeat):
            ended = await _pass(settings, configuration, captures, stop, ports)
    finally:
        spent_seconds = 0.0 if ended is None else time.monotonic() - ended
        await captures.stop(max(1.0, settings.proxy_grace_seconds - spent_seconds))
        await admin.stop()


class _Ports:
    """Whether calls are taken: ready only while they are."""

    def __init__(self, connections: Connections, calls: Calls) -> None:
        self.connections = connections
        self.calls = calls
        self.rest: Server | None = None

    async def why_closed(self) -> str | None:
        """None: they are open; gRPC's is before REST's."""
        if self.rest is None or not self.rest.listening.is_set():
            return "not open yet"
        return "no new calls: the proxy ends" if self.rest.should_exit else None


async def _pass(
    settings: ProxySettings,
    configuration: Configuration,
    captures: Captures,
    stop: asyncio.Event,
    ports: _Ports,
) -> float:
    """Both ports, until they have to stop; when that was (monotonic seconds)."""
    async with bridged(configuration, settings.proxy_grpc_message_bytes) as answering:
        return await _serve(settings, answering, captures, stop, ports)


async def _serve(
    settings: ProxySettings,
    configuration: Configuration,
    captures: Captures,
    stop: asyncio.Event,
    ports: _Ports,
) -> float:
    prefixes = PathPrefixes(_names(settings.proxy_path_prefixes))
    routing = Routing(configuration, prefixes)
    upstreams = Upstreams(configuration.upstreams)
    grace = settings.proxy_grace_seconds * _CALLS_SHARE
    grpc = GrpcPort(
        settings,
        configuration,
        routing,
        captures,
        connections=ports.connections,
        calls=ports.calls,
    )
    stripping = Stripping(settings.proxy_strip_bytes)
    app = Forwarding(routing, upstreams, captures.begin, stripping)
    rest = _rest(settings, app, grace, ports.connections)
    try:
        await grpc.start()
        ports.rest = rest
        serving = asyncio.create_task(rest.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended = time.monotonic()
        rest.should_exit = True
        await asyncio.gather(serving, grpc.stop(grace))
        stopping.cancel()
        return ended
    finally:
        await upstreams.close()


def _rest(
    settings: ProxySettings, app: Forwarding, grace: float, connections: Connections
) -> Server:
    return server_of(
        app,
        host=settings.proxy_host,
        port=settings.proxy_port,
        grace_seconds=grace,
        connections=connections,
        limits=limits_of(settings),
        certificate=settings.proxy_tls_certificate_file,
        key=settings.proxy_tls_key_file,
    )


def configured(settings: UpstreamSettings) -> Configuration:
    """Upstreams and models, of the file or of the settings. Raises WrongConfiguration."""
    if settings.proxy_config is not None:
        has_key = bool(settings.proxy_redaction_key.get_secret_value())
        return configuration_of(settings.proxy_config, protocols=PROTOCOLS, has_key=has_key)
    names = _names(settings.proxy_protocols)
    return configuration_of_one(
        settings.proxy_upstream, settings.proxy_upstream_grpc, names, protocols=PROTOCOLS
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@asynccontextmanager
async def _beating(heartbeat: Heartbeat) -> AsyncIterator[None]:
    """Beat while the loop turns."""

    async def beat() -> None:
        while True:
            heartbeat.beat()
            await asyncio.sleep(_BEAT_SECONDS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
