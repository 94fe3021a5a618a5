"""The gRPC port, where an upstream answers gRPC."""

import asyncio

import grpc
import structlog

from inference_store.platform.serving import Connections, PortTaken
from inference_store.platform.settings import ProxySettings

from .capture import Captures
from .configuration import Configuration, UpstreamEntry
from .grpc import Calls, Onward, channel, server
from .routing import Routing

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
        self._upstreams = [each for each in configuration.upstreams if each.grpc is not None]
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Open the port. Raises PortTaken."""
        if not self._upstreams:
            return
        settings = self._settings
        for each in self._upstreams:
            most = settings.proxy_grpc_message_bytes
            self._channels[each.name] = channel_to(each, each.grpc or "", most)
        self._server = server(
            self._onward,
            self._captures,
            by_model=len(self._upstreams) > 1,
            message_bytes=settings.proxy_grpc_message_bytes,
            calls=self._calls,
            most_connections=self._connections.most,
        )
        port = self._listen(f"{settings.proxy_host}:{settings.proxy_grpc_port}")
        await self._server.start()
        _log.info("proxy open to gRPC", action="proxy_grpc_listening", port=port)

    def _listen(self, address: str) -> int:
        try:
            return self._bound(address)
        except RuntimeError:  # gRPC writes its reason to stderr, and says here that there is one
            raise PortTaken(
                f"cannot listen on {address} for gRPC."
                " Change INFERENCE_STORE_PROXY_HOST and INFERENCE_STORE_PROXY_GRPC_PORT."
            ) from None

    def _bound(self, address: str) -> int:
        assert self._server is not None
        certificate = self._settings.proxy_tls_certificate_file
        key = self._settings.proxy_tls_key_file
        if certificate is None or key is None:
            return self._server.add_insecure_port(address)
        pair = (key.read_bytes(), certificate.read_bytes())
        return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    async def stop(self, grace_seconds: float) -> None:
        """No new calls; those under way have `grace_seconds`."""
        if self._server is not None:
            await self._server.stop(grace_seconds)
        await asyncio.gather(*(each.close() for each in self._channels.values()))

    def _onward(self, method: str, model: str | None, version: str | None) -> Onward | None:
        route = self._routing.route("grpc", "POST", method, model, version)
        found = self._channels.get(route.upstream.name)
        if found is None:
            return None
        # a stream may live for ever, and what is not known may be one
        is_one = route.call is not None and route.call.kind == "infer"
        return Onward(
            channel=found,
            call=route.call,
            is_unrecognised=route.is_unrecognised,
            upstream=route.upstream.name,
            rules=route.rules,
            model=route.model,
            timeout_seconds=route.upstream.read_seconds if is_one else None,
            allow_shutdown=route.upstream.allow_shutdown,
        )


def channel_to(entry: UpstreamEntry, target: str, message_bytes: int) -> grpc.aio.Channel:
    """A channel to an upstream, at a target as its entry has it."""
    address = target.removeprefix("grpcs://").removeprefix("grpc://")
    credentials = _credentials(entry) if target.startswith("grpcs://") else None
    return channel(address, credentials=credentials, message_bytes=message_bytes)


def _credentials(entry: UpstreamEntry) -> grpc.ChannelCredentials:
    authorities, key, certificate = (
        None if path is None else path.read_bytes()
        for path in (entry.ca_file, entry.key_file, entry.certificate_file)
    )
    return grpc.ssl_channel_credentials(authorities, key, certificate)
