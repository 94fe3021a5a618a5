"""The server for callers: it answers every method of every service, within limits of calls and of
connections by address.

gRPC's server limits the total of connections, but does not list them. The process's open files do:
a connection is a socket that does not listen, with the port at its own end and a caller at the
other.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from grpc import ChannelConnectivity, StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.platform import traces
from inference_store.platform.metrics import REFUSED_CALLS
from inference_store.platform.serving import Connections, Shares
from inference_store.proxy.capture import Captures
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.routing import TRACE_HEADERS, ObservedCall, Outcome, Route

from .captured_call import (
    METHODS,
    SHUTDOWN,
    STATUS,
    UNKNOWN,
    Context,
    FindRoute,
    Method,
    UpstreamCall,
    cancelled_if_gone,
    fail,
    number,
    read_names,
    refuse,
    select_metadata,
)
from .captured_stream import RecordedCall, exchange_messages

MESSAGE_BYTES: Final = 256 << 20
"""The largest message that is forwarded by default: a larger one is refused, not cut."""
_METADATA_BYTES: Final = 1 << 20
_RECONNECT_MILLISECONDS: Final = 1_000


def options(message_bytes: int = MESSAGE_BYTES) -> Sequence[tuple[str, int]]:
    """Return the options of clients and servers: gRPC's default limits (4 MiB, and 8 KiB of
    metadata) would apply instead of the upstream's."""
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    )


def channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    message_bytes: int = MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Return a channel to `host:port`; it connects when first used, and again when the upstream is
    available again. Call it inside the loop."""
    all_options = (
        *options(message_bytes),
        # a call is forwarded once: only the caller may repeat it
        ("grpc.enable_retries", 0),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS // 10),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
    )
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=all_options)
    return grpc.aio.secure_channel(target, credentials, options=all_options)


Channels: TypeAlias = Mapping[str, grpc.aio.Channel]
"""The channels by the names of their upstreams; another upstream does not answer gRPC."""
Caller: TypeAlias = tuple[str, int]
"""An address and a port."""

_OPEN_FILES: Final = "/dev/fd"
_EVERY_SECONDS: Final = 1.0


async def limit_connections(
    port: int, connections: Connections, accepted: set[Caller] | None = None
) -> None:
    """Close connections over an address's limit on this port, the newest first, until cancelled.

    `accepted`: callers that connected before.
    """
    accepted = accepted or set()
    while True:
        accepted = close_surplus(port, connections, accepted)
        await asyncio.sleep(_EVERY_SECONDS)


def close_surplus(port: int, connections: Connections, earlier: set[Caller]) -> set[Caller]:
    """Close and count connections over the limit of an address, and return the callers that stay.

    `earlier`: those that stayed last time; they have precedence.
    """
    staying: set[Caller] = set()
    by_address: Counter[str] = Counter()
    for caller, file_number in sorted(_list_callers(port), key=lambda item: item[0] not in earlier):
        if by_address[caller[0]] < connections.most_of_one:
            by_address[caller[0]] += 1
            staying.add(caller)
        elif _close(file_number, caller, port):
            connections.refuse("address")
    return staying


def _list_callers(port: int) -> Iterator[tuple[Caller, int]]:
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError), _duplicate(int(name)) as connection:
            if (caller := _find_caller(connection, port)) is not None:
                yield caller, int(name)


def _close(number: int, caller: Caller, port: int) -> bool:
    """Shut down a caller's connection, for gRPC, too; return False if the caller had already closed
    it."""
    with suppress(OSError), _duplicate(number) as connection:
        if _find_caller(connection, port) == caller:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _duplicate(number: int) -> socket.socket:
    """Return a duplicate of the socket of an open file, which others may close meanwhile. Raises
    OSError if it is not a socket."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _find_caller(connection: socket.socket, port: int) -> Caller | None:
    """Return the caller at the other end; None if this is not a connection of the port. Raises
    OSError if the socket listens."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if connection.getsockname()[1] != port:
        return None
    address, caller_port, *_ = connection.getpeername()
    return address, caller_port


MOST_CALLS: Final = 4096
MESSAGE_SECONDS: Final = 300.0
FIRST_MESSAGE_SECONDS: Final = 1.0


class Calls(Shares):
    """Takes calls while there is room for them, and counts those refused: the server's own limit
    refuses without a log line or a metric."""

    def __init__(
        self,
        most: int = MOST_CALLS,
        *,
        most_of_one: int | None = None,
        message_seconds: float = MESSAGE_SECONDS,
        first_message_seconds: float = FIRST_MESSAGE_SECONDS,
    ) -> None:
        """`most` in total, `most_of_one` from one address (None: half of them); a call with a
        single message may take `message_seconds` to send it. A stream that the upstream refused
        before its first message arrived waits `first_message_seconds` for it: without it the call
        has no model, and is not captured."""
        super().__init__("gRPC calls", most, most_of_one or max(1, most // 2))
        self.message_seconds = message_seconds
        self.first_message_seconds = first_message_seconds

    def take(self, peer: str) -> str | None:
        """Count a call until its task ends, and return None; or return why there is no room for it.
        Call it in the task of that call, before its messages are read. `peer`: gRPC's name of the
        caller, which ends with a port."""
        address = peer.rpartition(":")[0]
        if (limit := self.hold(address)) is not None:
            REFUSED_CALLS.inc()
            whose = "from one address " if limit == "address" else "under way "
            return f"the proxy has as many calls {whose}as it may: try again later"
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda _: self.release(address))
        return None


# Forwards the bytes of calls both ways without decoding them.
#
# The caller's answer never waits for capture: an exchange is handed over after the call's status is
# sent.


class Forwarding:
    """The handler of every method."""

    def __init__(
        self, find: FindRoute, channels: Channels, captures: Captures, calls: Calls
    ) -> None:
        self._find_route, self._channels = find, channels
        self._captures = captures
        self._calls = calls
        self._omi_versions: dict[str, str] = {}
        """The versions by upstream, from the last Status that passed through."""

    async def unary(self, path: str, method: Method, _: Any, context: Context) -> bytes:
        """Forward a call with one message each way."""
        request = await self._read_message(context)
        if request is None:
            await fail(context)
            return b""
        target = self._find_target(path, method, request)
        if target is None or (path == SHUTDOWN and not target.upstream.allow_shutdown):
            refuse(context, target)
            await fail(context)
            return b""
        recorded = RecordedCall(self._captures, lambda _: target, path, context)
        recorded.record_request(request)
        observe(target, path, context, recorded)
        upstream = self._channels[target.upstream.name]
        may_drop = path == SHUTDOWN and await is_connected(upstream)
        ask: Any = upstream.unary_unary(path)
        call: UpstreamCall = ask(request, **_options(target, context))
        try:
            answer = await _read_answer(call)
            if answer is None and may_drop and await call.code() in _DROPPED:
                recorded.record_end(number(StatusCode.OK), None)
                # the answer that the container did not send: accepted
                closed = "The container closed the connection."
                response = message("ShutdownResponse")(
                    status_code=202, status="Accepted", message=closed
                )
                return bytes(response.SerializeToString())
            await _finish(call, context, recorded, answer or b"")
        except asyncio.CancelledError:
            recorded.record_cut_off()
            raise
        if path == STATUS and (status := parsed("StatusResponse", answer or b"")) is not None:
            version = status.model_info.model_version[:_LONGEST]
            self._omi_versions |= {target.upstream.name: version} if version else {}
        await fail(context)
        return answer or b""

    async def stream(self, path: str, method: Method, _: Any, context: Context) -> None:
        """Forward a call with any number of messages each way."""
        if not self._has_room(context):
            return
        # its first message decides its upstream
        first = await context.read() if len(self._channels) > 1 and method.model else None
        target = self._find_target(path, method, first)
        if target is None:
            refuse(context, target)
            return
        # each request names its model
        recorded = RecordedCall(
            self._captures, lambda msg: self._find_target(path, method, msg), path, context
        )
        observe(target, path, context, recorded)
        upstream = self._channels[target.upstream.name]
        call: UpstreamCall = upstream.stream_stream(path)(**_options(target, context))
        try:
            seconds = self._calls.first_message_seconds
            await exchange_messages(first, context, call, recorded, seconds)
        except asyncio.CancelledError:
            recorded.record_cut_off()
            raise
        except grpc.aio.BaseError:  # the caller is gone
            recorded.record_cut_off()
            return
        await recorded.end(call)

    def _has_room(self, context: Context) -> bool:
        """Return whether the call is taken; if not, set its status."""
        reason = self._calls.take(context.peer())
        if reason is not None:
            context.set_code(StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(reason)
        return reason is None

    async def _read_message(self, context: Context) -> bytes | None:
        """Read the message of a call that has one; if it is refused, set its status and return
        None."""
        if not self._has_room(context):
            return None
        seconds = self._calls.message_seconds
        try:
            async with asyncio.timeout(seconds):
                message: Any = await context.read()
        except TimeoutError:
            context.set_code(StatusCode.DEADLINE_EXCEEDED)
            context.set_details(f"the request was not whole after {seconds:g} s")
            return None
        if message is grpc.aio.EOF:
            context.set_code(StatusCode.INVALID_ARGUMENT)
            context.set_details("this method takes one message, and the request has none")
            return None
        return bytes(message)

    def _find_target(self, path: str, method: Method, first: Any) -> Route | None:
        model_and_version = read_names(method, first) if isinstance(first, bytes) else (None, None)
        target = self._find_route(path, *model_and_version)
        if target.upstream.name not in self._channels:
            return None
        version = self._omi_versions.get(target.upstream.name)
        if path != RUN or target.call is None or version is None:
            return target
        return replace(target, call=replace(target.call, version=version))


async def _read_answer(call: UpstreamCall) -> bytes | None:
    """Return the message of an answer; None if the call failed."""
    try:
        answer: bytes = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


async def _finish(
    call: UpstreamCall, context: Context, recorded: RecordedCall, answer: bytes
) -> None:
    if await call.code() is StatusCode.OK:
        recorded.record_response(answer)
    if initial := select_metadata(await call.initial_metadata()):
        with cancelled_if_gone():
            await context.send_initial_metadata(initial)
    await recorded.end(call)


def _options(target: Route, context: Context) -> dict[str, Any]:
    """Return the options of a request: its metadata, and the time that is left for it."""
    # a stream may be endless, and an unknown call may be a stream
    is_single = target.call is not None and target.call.kind == "infer"
    limits = [target.upstream.read_seconds] if is_single else []
    if (remaining := context.time_remaining()) is not None:
        limits.append(remaining)
    return {
        "metadata": select_metadata(context.invocation_metadata()),
        "timeout": min(limits, default=None),
    }


_LONGEST: Final = 256


_SECONDS: Final = 5.0
_UNDECIDED: Final = frozenset({ChannelConnectivity.IDLE, ChannelConnectivity.CONNECTING})
# How a call ends whose connection was dropped.
_DROPPED: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.UNKNOWN})


async def is_connected(channel: grpc.aio.Channel, seconds: float = _SECONDS) -> bool:
    """Return whether there is a connection, to distinguish a dropped connection from a missing
    one."""
    state = channel.get_state(try_to_connect=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while state in _UNDECIDED:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
    return state is ChannelConnectivity.READY


# Codes of a server that are not the caller's mistake.
_FAILED: Final = frozenset(
    number(code)
    for code in (
        *(StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL),
        *(StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS),
    )
)


def observe(target: Route, path: str, context: Context, recorded: RecordedCall) -> None:
    """Observe a call from now on; `recorded` knows its status code at the end."""
    observed = ObservedCall("grpc", target, lambda: _describe(path, context))
    add_done_callback: Any = context.add_done_callback  # the stubs require an instance of a class
    add_done_callback(lambda _: observed.end(_classify(recorded.code), recorded.code))


def _describe(path: str, context: Context) -> tuple[traces.Attributes, Mapping[str, str]]:
    attributes = {"rpc.system": "grpc"}
    if path in METHODS:  # any other is untrusted text
        _, attributes["rpc.service"], attributes["rpc.method"] = path.split("/")
    pairs = context.invocation_metadata() or ()
    return attributes, {
        name: value for name, value in pairs if name in TRACE_HEADERS and isinstance(value, str)
    }


def _classify(code: int | None) -> Outcome:
    if code == number(StatusCode.OK):
        return "ok"
    if code == number(StatusCode.CANCELLED):
        return "gone"
    return "failed" if code is None or code in _FAILED else "refused"


Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_OPTIONS: Final = (
    # The upstream decides how callers may keep a connection alive.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # A connection without a call ends in time, and so does one without a handshake.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # Otherwise two proxies on one port would silently share its calls.
    ("grpc.so_reuseport", 0),
)


class _EveryMethod(grpc.GenericRpcHandler):
    """A handler for every method, without serializers: messages are bytes."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._handlers = {path: self._handler(path, method) for path, method in METHODS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        path = handler_call_details.method
        return self._handlers.get(path) or self._handler(path, UNKNOWN)

    def _handler(self, path: str, method: Method) -> Handler:
        # the single message of a stream can be awaited with a time limit
        build: Any = grpc.stream_stream_rpc_method_handler
        behaviour: Callable[..., Any] = self._forwarding.stream
        if method.unary:
            build, behaviour = grpc.stream_unary_rpc_method_handler, self._forwarding.unary
        handler: Handler = build(partial(behaviour, path, method))
        return handler


def server(
    find: FindRoute,
    channels: Channels,
    captures: Captures,
    *,
    message_bytes: int = MESSAGE_BYTES,
    calls: Calls | None = None,
    most_connections: int = MOST_CALLS,
) -> grpc.aio.Server:
    """Return a server without ports: add them, start it, and stop it with a grace, inside the loop.

    `most_connections`: the most at once; others are closed. `calls`: those without room are refused
    with RESOURCE_EXHAUSTED.
    """
    forwarding = Forwarding(find, channels, captures, calls or Calls())
    return grpc.aio.server(
        handlers=(_EveryMethod(forwarding),),
        options=(
            *options(message_bytes),
            *_OPTIONS,
            ("grpc.max_allowed_incoming_connections", most_connections),
        ),
    )
