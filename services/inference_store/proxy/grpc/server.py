"""The gRPC port: it answers every method of every service in front of any model server, within
limits of calls and of connections by address. Bytes pass both ways without being decoded.

gRPC's server limits the total of connections, but does not list them. The process's open files do:
a connection is a socket that does not listen, with the port at its own end and a caller at the
other.
"""

import asyncio
import os
import socket
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import structlog
from grpc import StatusCode

from inference_store.grpc_messages import parsed
from inference_store.platform import traces
from inference_store.platform.freed_memory import keep_releasing
from inference_store.platform.metrics import REFUSED_CALLS
from inference_store.platform.serving import Connections, PortTaken, Shares
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.routing import TRACE_HEADERS, ObservedCall, Outcome, Route, Routing

from .captured_call import (
    METHODS,
    SHUTDOWN,
    STATUS,
    STREAM,
    Context,
    abort,
    read_names,
    select_metadata,
)
from .captured_stream import RecordedCall, UpstreamCall

FindRoute: TypeAlias = Callable[[str, str | None, str | None], Route]
"""Returns the route of a method, a model and a version (None if the request does not name it)."""
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Caller: TypeAlias = tuple[str, int]
"""An address and a port."""
MESSAGE_BYTES: Final = 256 << 20
"""The largest message that is forwarded by default: a larger one is refused, not cut."""
_METADATA_BYTES: Final = 1 << 20
_CHANNEL_OPTIONS: Final = (
    # a call is forwarded once: only the caller may repeat it
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
)
_SERVER_OPTIONS: Final = (
    # The upstream decides how callers may keep a connection alive.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # A connection without a call ends in time, and so does one without a handshake.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # Otherwise two proxies on one port would silently share its calls.
    ("grpc.so_reuseport", 0),
)
_log = structlog.get_logger()


def list_limits(message_bytes: int) -> tuple[tuple[str, int], ...]:
    """Return the options of clients and servers: gRPC's default limits (4 MiB, and 8 KiB of
    metadata) would apply instead of the upstream's."""
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    )


def channel(
    target: str, entry: UpstreamEntry | None = None, message_bytes: int = MESSAGE_BYTES
) -> grpc.aio.Channel:
    """Return a channel to an upstream; `target` has the form of its entry. It connects when first
    used, and again when the upstream is available again. Call it inside the loop."""
    address = target.removeprefix("grpcs://").removeprefix("grpc://")
    options = (*list_limits(message_bytes), *_CHANNEL_OPTIONS)
    if not target.startswith("grpcs://"):
        return grpc.aio.insecure_channel(address, options=options)
    files = (entry.ca_file, entry.key_file, entry.certificate_file) if entry else ()
    contents = [None if path is None else path.read_bytes() for path in files]
    credentials = grpc.ssl_channel_credentials(*contents)
    return grpc.aio.secure_channel(address, credentials, options=options)


async def limit_connections(
    port: int, connections: Connections, accepted: set[Caller] | None = None
) -> None:
    """Close connections over an address's limit on this port, the newest first, until cancelled.

    `accepted`: callers that connected before.
    """
    accepted = accepted or set()
    while True:
        accepted = close_surplus(port, connections, accepted)
        await asyncio.sleep(1.0)


def close_surplus(port: int, connections: Connections, earlier: set[Caller]) -> set[Caller]:
    """Close and count connections over the limit of an address, and return the callers that stay.

    `earlier`: those that stayed last time; they have precedence.
    """
    callers = {caller for caller, _ in _list_connections(port)}
    staying: set[Caller] = set()
    by_address: Counter[str] = Counter()
    for caller in sorted(callers, key=lambda caller: caller not in earlier):
        by_address[caller[0]] += 1
        if by_address[caller[0]] <= connections.most_of_one:
            staying.add(caller)
    surplus = callers - staying
    for caller, connection in _list_connections(port) if surplus else ():
        with suppress(OSError):  # the caller has closed it
            if caller in surplus:
                connection.shutdown(socket.SHUT_RDWR)  # for gRPC, too
                connections.refuse("address")
    return staying


def _list_connections(port: int) -> Iterator[tuple[Caller, socket.socket]]:
    """Yield the callers at a port; each socket is closed here when the next one is asked for."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            # others may close the file meanwhile, but not its duplicate
            duplicate = os.dup(int(name))
            if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
                os.close(duplicate)
                continue
            with socket.socket(fileno=duplicate) as connection:
                is_ip = connection.family in {socket.AF_INET, socket.AF_INET6}
                if is_ip and connection.getsockname()[1] == port:
                    yield connection.getpeername()[:2], connection


class Calls(Shares):
    """Takes calls while there is room for them, and counts those refused: the server's own limit
    refuses without a log line or a metric."""

    def __init__(
        self,
        most: int = 4096,
        *,
        most_of_one: int | None = None,
        message_seconds: float = 300.0,
    ) -> None:
        """`most` in total, `most_of_one` from one address (None: half of them); a call with a
        single message may take `message_seconds` to send it."""
        super().__init__("gRPC calls", most, most_of_one or max(1, most // 2))
        self.message_seconds = message_seconds

    async def take(self, context: Context) -> None:
        """Count a call until its task ends, or refuse it. Call it in the task of that call, before
        its messages are read."""
        address = context.peer().rpartition(":")[0]  # without the port
        if (limit := self.hold(address)) is not None:
            REFUSED_CALLS.inc()
            whose = "from one address " if limit == "address" else "under way "
            sentence = f"the proxy has as many calls {whose}as it may: try again later"
            await abort(context, StatusCode.RESOURCE_EXHAUSTED, sentence)
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda _: self.release(address))


_LONGEST: Final = 256


class Forwarding(grpc.GenericRpcHandler):
    """The handler of every method, without serializers: messages are bytes.

    The caller's answer never waits for capture: an exchange is handed over after the call's status
    is sent.
    """

    def __init__(
        self,
        find: FindRoute,
        channels: Mapping[str, grpc.aio.Channel],
        captures: Captures,
        calls: Calls,
    ) -> None:
        """`channels` by the names of their upstreams; another upstream does not answer gRPC."""
        self._find, self._channels, self._captures = find, channels, captures
        self._calls = calls
        self._omi_versions: dict[str, str] = {}
        """The versions by upstream, from the last Status that passed through."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        path = handler_call_details.method
        # the single message of a stream can be awaited with a time limit
        build: Any = grpc.stream_stream_rpc_method_handler
        behaviour: Callable[..., Any] = self._stream
        if path in METHODS and path != STREAM:
            build, behaviour = grpc.stream_unary_rpc_method_handler, self._unary
        handler: Handler = build(partial(behaviour, path))
        return handler

    async def _unary(self, path: str, _: Any, context: Context) -> bytes:
        await self._calls.take(context)
        request = await self._read_message(context)
        route = await self._choose(path, request, context)
        if route.call and self._captures.queue.is_needed:
            await self._captures.queue.wait(len(request))
        if path == SHUTDOWN and not route.upstream.allow_shutdown:
            sentence = "Shutdown is not passed on: the proxy's configuration can allow it"
            await abort(context, StatusCode.PERMISSION_DENIED, sentence)
        upstream = self._channels[route.upstream.name]
        with self._record(route, lambda _: route, path, context) as recorded:
            recorded.record_request(request)
            ask: Any = upstream.unary_unary(path)
            call: UpstreamCall = ask(request, **_options(route, context))
            answer = b""
            with suppress(grpc.aio.AioRpcError):  # the call has its status
                answer = await call
            code = await call.code()
            if code is StatusCode.OK:
                recorded.record_response(answer)
            if initial := select_metadata(await call.initial_metadata()):
                await context.send_initial_metadata(initial)
            await recorded.finish(call)
        if path == STATUS and (status := parsed("StatusResponse", answer)) is not None:
            version = status.model_info.model_version[:_LONGEST]
            self._omi_versions |= {route.upstream.name: version} if version else {}
        if code is not StatusCode.OK:
            await abort(context, code)
        return answer

    async def _stream(self, path: str, _: Any, context: Context) -> None:
        await self._calls.take(context)
        # its first message decides its upstream
        first = await context.read() if len(self._channels) > 1 and METHODS.get(path) else None
        route = await self._choose(path, first, context)
        find = partial(self._find_route, path)  # each request names its model
        with self._record(route, find, path, context) as recorded:
            upstream: Any = self._channels[route.upstream.name].stream_stream(path)
            call: UpstreamCall = upstream(**_options(route, context))
            await recorded.relay(first, call)
            await recorded.finish(call)

    async def _read_message(self, context: Context) -> bytes:
        seconds = self._calls.message_seconds
        try:
            async with asyncio.timeout(seconds):
                read: Any = await context.read()
        except TimeoutError:
            sentence = f"the request was not whole after {seconds:g} s"
            await abort(context, StatusCode.DEADLINE_EXCEEDED, sentence)
        if read is grpc.aio.EOF:
            sentence = "this method takes one message, and the request has none"
            await abort(context, StatusCode.INVALID_ARGUMENT, sentence)
        return bytes(read)

    async def _choose(self, path: str, first: Any, context: Context) -> Route:
        route = self._find_route(path, first)
        if route is None:
            sentence = "no upstream of this proxy serves that model"
            await abort(context, StatusCode.NOT_FOUND, sentence)
        return route

    def _find_route(self, path: str, first: Any) -> Route | None:
        model_and_version = read_names(path, first) if isinstance(first, bytes) else (None, None)
        route = self._find(path, *model_and_version)
        if route.upstream.name not in self._channels:
            return None
        version = self._omi_versions.get(route.upstream.name)
        if path != RUN or route.call is None or version is None:
            return route
        return replace(route, call=replace(route.call, version=version))

    @contextmanager
    def _record(
        self, route: Route, find: Callable[[bytes], Route | None], path: str, context: Context
    ) -> Iterator[RecordedCall]:
        recorded = RecordedCall(self._captures, find, path, context)
        observed = ObservedCall("grpc", route, partial(_describe, path, context))

        def end(_: object) -> None:
            observed.end(_OUTCOMES.get(recorded.code, "refused"), recorded.code)

        add_done_callback: Any = context.add_done_callback  # the stubs require a class's instance
        add_done_callback(end)
        try:
            yield recorded
        except asyncio.CancelledError:
            recorded.record_cut_off()
            raise
        except grpc.aio.BaseError as exc:  # the caller is gone: noticed only by writing
            recorded.record_cut_off()
            raise asyncio.CancelledError from exc


def _options(route: Route, context: Context) -> dict[str, Any]:
    # a stream may be endless, and an unknown call may be a stream
    is_single = route.call is not None and route.call.kind == "infer"
    limits = [route.upstream.read_seconds] if is_single else []
    if (remaining := context.time_remaining()) is not None:
        limits.append(remaining)
    metadata = select_metadata(context.invocation_metadata())
    return {"metadata": metadata, "timeout": min(limits, default=None)}


def _describe(path: str, context: Context) -> tuple[traces.Attributes, Mapping[str, str]]:
    attributes = {"rpc.system": "grpc"}
    if path in METHODS:  # any other is untrusted text
        _, attributes["rpc.service"], attributes["rpc.method"] = path.split("/")
    pairs = context.invocation_metadata() or ()
    return attributes, {
        name: value for name, value in pairs if name in TRACE_HEADERS and isinstance(value, str)
    }


# Others are the caller's mistake.
_OUTCOMES: Final[Mapping[int | None, Outcome]] = {
    None: "failed",
    StatusCode.OK.value[0]: "ok",
    StatusCode.CANCELLED.value[0]: "gone",
    StatusCode.UNKNOWN.value[0]: "failed",
    StatusCode.DEADLINE_EXCEEDED.value[0]: "failed",
    StatusCode.INTERNAL.value[0]: "failed",
    StatusCode.UNAVAILABLE.value[0]: "failed",
    StatusCode.DATA_LOSS.value[0]: "failed",
}


def server(
    find: FindRoute,
    channels: Mapping[str, grpc.aio.Channel],
    captures: Captures,
    *,
    message_bytes: int = MESSAGE_BYTES,
    calls: Calls | None = None,
    most_connections: int = 4096,
) -> grpc.aio.Server:
    """Return a server without ports: add them, start it, and stop it with a grace, inside the loop.

    `most_connections`: the most at once; others are closed. `calls`: those without room are refused
    with RESOURCE_EXHAUSTED.
    """
    most = ("grpc.max_allowed_incoming_connections", most_connections)
    forwarding = Forwarding(find, channels, captures, calls or Calls())
    options = (*list_limits(message_bytes), *_SERVER_OPTIONS, most)
    return grpc.aio.server(handlers=(forwarding,), options=options)


async def open_grpc_port(
    settings: ProxySettings,
    configuration: Configuration,
    routing: Routing,
    captures: Captures,
    *,
    connections: Connections,
    calls: Calls,
) -> Callable[[float], Awaitable[object]]:
    """Open the port if an upstream answers gRPC, with a channel to each, inside the running loop.
    Return what closes it: it takes no new calls, and gives those in progress so many seconds.
    Raises PortTaken."""
    upstreams = [entry for entry in configuration.upstreams if entry.grpc is not None]
    if not upstreams:
        return lambda _: asyncio.sleep(0)
    most = settings.proxy_grpc_message_bytes
    channels: dict[str, grpc.aio.Channel] = {}
    grpc_server = server(
        partial(routing.route, "grpc", "POST"),
        channels,
        captures,
        message_bytes=most,
        calls=calls,
        most_connections=connections.most,
    )
    port = _listen(grpc_server, settings)
    channels |= {entry.name: channel(entry.grpc or "", entry, most) for entry in upstreams}
    await grpc_server.start()
    work = (limit_connections(port, connections), keep_releasing())
    tasks = [asyncio.create_task(each) for each in work]
    _log.info("proxy open to gRPC", action="proxy_grpc_listening", port=port)

    async def close(grace_seconds: float) -> None:
        for task in tasks:
            task.cancel()
        await grpc_server.stop(grace_seconds)
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    return close


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
