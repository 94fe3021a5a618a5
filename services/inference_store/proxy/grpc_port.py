"""The gRPC port, which is open if an upstream answers gRPC."""

import asyncio
from collections.abc import Awaitable, Callable
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


async def open_grpc_port(
    settings: ProxySettings,
    configuration: Configuration,
    routing: Routing,
    captures: Captures,
    *,
    connections: Connections,
    calls: Calls,
) -> Callable[[float], Awaitable[object]]:
    """Open the port, with a channel to each upstream, inside the running loop. Return what closes
    it: it takes no new calls, and gives those in progress so many seconds. Raises PortTaken."""
    upstreams = [entry for entry in configuration.upstreams if entry.grpc is not None]
    most = settings.proxy_grpc_message_bytes
    channels: dict[str, grpc.aio.Channel] = {}
    if not upstreams:
        return _close_nothing
    grpc_server = server(
        partial(routing.route, "grpc", "POST"),
        channels,
        captures,
        message_bytes=most,
        calls=calls,
        most_connections=connections.most,
    )
    port = _listen(grpc_server, settings)
    channels |= {entry.name: open_channel(entry, entry.grpc or "", most) for entry in upstreams}
    await grpc_server.start()
    work = (limit_connections(port, connections), keep_releasing())
    tasks = [asyncio.create_task(task) for task in work]
    _log.info("proxy open to gRPC", action="proxy_grpc_listening", port=port)

    async def close(grace_seconds: float) -> None:
        for task in tasks:
            task.cancel()
        await grpc_server.stop(grace_seconds)
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    return close


async def _close_nothing(_: float) -> None:
    pass


def _listen(grpc_server: grpc.aio.Server, settings: ProxySettings) -> int:
    address = f"{settings.proxy_host}:{settings.proxy_grpc_port}"
    certificate, key = settings.proxy_tls_certificate_file, settings.proxy_tls_key_file
    try:
        if certificate is None or key is None:
            return grpc_server.add_insecure_port(address)
        return grpc_server.add_secure_port(address, read_server_credentials(certificate, key))
    except RuntimeError:  # gRPC writes its reason to stderr
        raise PortTaken(
            f"cannot listen on {address} for gRPC."
            " Change INFERENCE_STORE_PROXY_HOST and INFERENCE_STORE_PROXY_GRPC_PORT."
        ) from None


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
