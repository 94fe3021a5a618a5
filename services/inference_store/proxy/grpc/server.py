"""The server for callers: it answers every method of every service."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from grpc import ChannelConnectivity, StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.platform import traces
from inference_store.proxy.observed_call import TRACE_HEADERS, ObservedCall, Outcome

from .call_end import (
    Context,
    UpstreamCall,
    cancelled_if_gone,
    end,
    fail,
    number,
    record_cut_off,
    refuse,
)
from .call_target import CallTarget, Route
from .calls import MOST_CALLS, Calls
from .captured_call import CapturedCall, Captures, RecordedCall
from .captured_stream import CapturedStream
from .channels import MESSAGE_BYTES, options
from .metadata import select_metadata
from .methods import METHODS, RUN, SHUTDOWN, STATUS, UNKNOWN, Method, read_names
from .streams import exchange_messages

# Forwards the bytes of calls both ways without decoding them.
#
# The caller's answer never waits for capture: an exchange is handed over after the call's status is
# sent.


class Forwarding:
    """The handler of every method."""

    def __init__(self, route: Route, captures: Captures, calls: Calls, *, by_model: bool) -> None:
        self._route = route
        self._captures = captures
        self._calls = calls
        self._by_model = by_model
        self._omi_versions = OmiVersions()

    async def unary(self, path: str, method: Method, _: Any, context: Context) -> bytes:
        """Forward a call with one message each way."""
        request = await self._read_message(context)
        if request is None:
            await fail(context)
            return b""
        target = self._find_target(path, method, request)
        if target is None or (path == SHUTDOWN and not target.allow_shutdown):
            refuse(context, target)
            await fail(context)
            return b""
        captured_call = CapturedCall(self._captures, target, path, context, request)
        observe(target, path, context, captured_call)
        may_drop = path == SHUTDOWN and await is_connected(target.channel)
        ask: Any = target.channel.unary_unary(path)
        call: UpstreamCall = ask(request, **_options(target, context))
        try:
            answer = await _read_answer(call)
            if answer is None and may_drop and has_dropped(await call.code()):
                captured_call.record_end(number(StatusCode.OK), None)
                return build_answer()
            await _finish(call, context, captured_call, answer or b"")
        except asyncio.CancelledError:
            record_cut_off(context, captured_call)
            raise
        self._omi_versions.note(target, path, answer or b"")
        await fail(context)
        return answer or b""

    async def stream(self, path: str, method: Method, _: Any, context: Context) -> None:
        """Forward a call with any number of messages each way."""
        if not self._has_room(context):
            return
        first = await context.read() if self._by_model and method.model else None
        target = self._find_target(path, method, first)
        if target is None:
            refuse(context, target)
            return
        # each request names its model
        captured_stream = CapturedStream(
            self._captures, lambda msg: self._find_target(path, method, msg), path, context
        )
        observe(target, path, context, captured_stream)
        call: UpstreamCall = target.channel.stream_stream(path)(**_options(target, context))
        try:
            await exchange_messages(
                first,
                context,
                call,
                captured_stream,
                first_message_seconds=self._calls.first_message_seconds,
            )
        except asyncio.CancelledError:
            record_cut_off(context, captured_stream)
            raise
        except grpc.aio.BaseError:  # the caller is gone
            record_cut_off(context, captured_stream)
            return
        await end(call, context, captured_stream)

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

    def _find_target(self, path: str, method: Method, first: Any) -> CallTarget | None:
        """Return the target by the first message, if there is one."""
        model_and_version = read_names(method, first) if isinstance(first, bytes) else (None, None)
        target = self._route(path, *model_and_version)
        return target and self._omi_versions.add_version(target, path)


async def _read_answer(call: UpstreamCall) -> bytes | None:
    """Return the message of an answer; None if the call failed."""
    try:
        answer: bytes = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


async def _finish(
    call: UpstreamCall, context: Context, captured_call: CapturedCall, answer: bytes
) -> None:
    """Send the metadata and the status after a single answer."""
    if await call.code() is StatusCode.OK:
        captured_call.record_response(answer)
    if initial := select_metadata(await call.initial_metadata()):
        with cancelled_if_gone():
            await context.send_initial_metadata(initial)
    await end(call, context, captured_call)


def _options(target: CallTarget, context: Context) -> dict[str, Any]:
    """Return the options of a request: its metadata, and the time that is left for it."""
    remaining = context.time_remaining()
    limits = [limit for limit in (remaining, target.timeout_seconds) if limit is not None]
    return {
        "metadata": select_metadata(context.invocation_metadata()),
        "timeout": min(limits, default=None),
    }


_LONGEST: Final = 256


class OmiVersions:
    """The versions by upstream, from the last Status that passed through."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def note(self, target: CallTarget, path: str, answer: bytes) -> None:
        """Note the version in a Status answer."""
        status = parsed("StatusResponse", answer) if path == STATUS else None
        if status is not None and (version := status.model_info.model_version):
            self._versions[target.upstream] = version[:_LONGEST]

    def add_version(self, target: CallTarget, path: str) -> CallTarget:
        """Return the target of a Run with the version of its model, if that is known."""
        version = self._versions.get(target.upstream)
        if path != RUN or target.call is None or version is None:
            return target
        return replace(target, call=replace(target.call, version=version))


_SECONDS: Final = 5.0
_UNDECIDED: Final = frozenset({ChannelConnectivity.IDLE, ChannelConnectivity.CONNECTING})
_DROPPED: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.UNKNOWN})


async def is_connected(channel: grpc.aio.Channel) -> bool:
    """Return whether there is a connection, to distinguish a dropped connection from a missing
    one."""
    state = channel.get_state(try_to_connect=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            while state in _UNDECIDED:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
    return state is ChannelConnectivity.READY


def has_dropped(code: StatusCode) -> bool:
    """Return whether a call ended because its connection was dropped."""
    return code in _DROPPED


def build_answer() -> bytes:
    """Return the answer that the container did not send: accepted."""
    response = message("ShutdownResponse")(
        status_code=202, status="Accepted", message="The container closed the connection."
    )
    written: bytes = response.SerializeToString()
    return written


# Codes of a server that are not the caller's mistake.
_FAILED: Final = frozenset(
    number(code)
    for code in (
        *(StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL),
        *(StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS),
    )
)


def observe(target: CallTarget, path: str, context: Context, captured_call: RecordedCall) -> None:
    """Observe a call from now on; `captured_call` knows its status code at the end."""
    observed = ObservedCall(
        "grpc",
        target.call,
        target.upstream,
        lambda: _describe(path, context),
        is_unrecognised=target.is_unrecognised,
    )
    add_done_callback: Any = context.add_done_callback  # the stubs require an instance of a class
    add_done_callback(lambda _: observed.end(_classify(captured_call.code), captured_call.code))


def _describe(path: str, context: Context) -> tuple[traces.Attributes, Mapping[str, str]]:
    """Return a span's attributes, and the caller's context."""
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
# The upstream decides how callers may keep a connection alive.
_PINGS: Final = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)
# A connection without a call ends in time, and so does one without a handshake.
_IDLE: Final = (
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
)
# Otherwise two proxies on one port would silently share its calls.
_ALONE: Final = (("grpc.so_reuseport", 0),)


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
        if method.unary:
            return _build_handler(
                grpc.stream_unary_rpc_method_handler, self._forwarding.unary, path, method
            )
        return _build_handler(
            grpc.stream_stream_rpc_method_handler, self._forwarding.stream, path, method
        )


def _build_handler(
    handler: Callable[..., Any], behaviour: Callable[..., Any], path: str, method: Method
) -> Handler:
    rpc_handler: Handler = handler(partial(behaviour, path, method))
    return rpc_handler


def server(
    route: Route,
    captures: Captures,
    *,
    by_model: bool,
    message_bytes: int = MESSAGE_BYTES,
    calls: Calls | None = None,
    most_connections: int = MOST_CALLS,
    compression: grpc.Compression | None = None,
) -> grpc.aio.Server:
    """Return a server without ports: add them, start it, and stop it with a grace, inside the loop.

    `most_connections`: the most at once; others are closed. `by_model`: wait for a stream's first
    message, which decides its upstream; not needed for a single upstream. `calls`: those without
    room are refused with RESOURCE_EXHAUSTED. `compression`: of answers; gRPC does not report what
    the upstream used.
    """
    forwarding = Forwarding(route, captures, calls or Calls(), by_model=by_model)
    return grpc.aio.server(
        handlers=(_EveryMethod(forwarding),),
        options=(
            *options(message_bytes),
            *_PINGS,
            *_ALONE,
            *_IDLE,
            ("grpc.max_allowed_incoming_connections", most_connections),
        ),
        compression=compression,
    )
