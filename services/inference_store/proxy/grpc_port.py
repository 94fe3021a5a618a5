"""The gRPC port, which is open if an upstream answers gRPC."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import structlog

from inference_store.platform.freed_memory import keep_releasing
from inference_store.platform.serving import Connections, PortTaken
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.grpc import Calls, channel, limit_connections, server
from inference_store.proxy.routing import Routing

_log = structlog.get_logger()


class GrpcPort:
    """One server, and a channel to each upstream; made inside the running loop."""

    def __init__(
        self,
        settings: ProxySettings,
        configuration: Configuration,
        routing: Routing,
        captures: Captures,
        *,
        connections: Connections,
        calls: Calls,
    ) -> None:
        self._connections = connections
        self._calls = calls
        self._settings = settings
        self._routing = routing
        self._captures = captures
        self._upstreams = [entry for entry in configuration.upstreams if entry.grpc is not None]
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the port. Raises PortTaken."""
        if not self._upstreams:
            return
        settings = self._settings
        for entry in self._upstreams:
            most = settings.proxy_grpc_message_bytes
            self._channels[entry.name] = open_channel(entry, entry.grpc or "", most)
        self._server = server(
            partial(self._routing.route, "grpc", "POST"),
            self._channels,
            self._captures,
            message_bytes=settings.proxy_grpc_message_bytes,
            calls=self._calls,
            most_connections=self._connections.most,
        )
        port = self._listen(self._server, f"{settings.proxy_host}:{settings.proxy_grpc_port}")
        await self._server.start()
        work = (limit_connections(port, self._connections), keep_releasing())
        self._tasks = [asyncio.create_task(task) for task in work]
        _log.info("proxy open to gRPC", action="proxy_grpc_listening", port=port)

    def _listen(self, server: grpc.aio.Server, address: str) -> int:
        certificate = self._settings.proxy_tls_certificate_file
        key = self._settings.proxy_tls_key_file
        try:
            if certificate is None or key is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, read_server_credentials(certificate, key))
        except RuntimeError:  # gRPC writes its reason to stderr
            raise PortTaken(
                f"cannot listen on {address} for gRPC."
                " Change INFERENCE_STORE_PROXY_HOST and INFERENCE_STORE_PROXY_GRPC_PORT."
            ) from None

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls; give those in progress `grace_seconds` to end."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(grace_seconds)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))


def read_server_credentials(certificate: Path, key: Path) -> grpc.ServerCredentials:
    """Return what the port presents to callers; renewed files are read for the next connection."""
    used = [(key.read_bytes(), certificate.read_bytes())]

    def renew() -> grpc.ServerCertificateConfiguration | None:
        with suppress(OSError):  # they are being renewed
            pair = (key.read_bytes(), certificate.read_bytes())
            if pair != used[0]:
                used[0] = pair
                return grpc.ssl_server_certificate_configuration([pair])
        return None

    first = grpc.ssl_server_certificate_configuration(used)
    # None leaves the pair as it is, which its types do not say
    return grpc.dynamic_ssl_server_credentials(first, renew)  # type: ignore[arg-type]


def open_channel(entry: UpstreamEntry, target: str, message_bytes: int) -> grpc.aio.Channel:
    """Open a channel to an upstream; `target` has the form of its entry."""
    address = target.removeprefix("grpcs://").removeprefix("grpc://")
    credentials = _read_credentials(entry) if target.startswith("grpcs://") else None
    return channel(address, credentials=credentials, message_bytes=message_bytes)


def _read_credentials(entry: UpstreamEntry) -> grpc.ChannelCredentials:
    authorities, key, certificate = (
        None if path is None else path.read_bytes()
        for path in (entry.ca_file, entry.key_file, entry.certificate_file)
    )
    return grpc.ssl_channel_credentials(authorities, key, certificate)
