"""A model server over gRPC that handles only bytes, and the results of calls to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import grpc

from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.grpc import channel, server
from inference_store.proxy.protocols import Call
from inference_store.proxy.protocols.v2_grpc import V2_GRPC
from inference_store.proxy.routing import Route
from tests.fake_captures import FakeCaptures
from tests.servers.ports import free_port

V2 = "/inference.GRPCInferenceService/"
INFER, STREAM = V2 + "ModelInfer", V2 + "ModelStreamInfer"
UPSTREAM = "behind"
SECONDS = 300
"""The patience of a test."""
HANG_SECONDS = 600
UNLIMITED = (("grpc.max_receive_message_length", -1),)
Behaviour = Callable[[Any], Any]
Pair = tuple[str, str | bytes]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class Upstream(grpc.GenericRpcHandler):
    """Behaviours by path, each called with the context alone; it records the metadata of calls."""

    def __init__(self) -> None:
        self.behaviours: dict[str, Behaviour] = {}
        self.metadata: list[tuple[Pair, ...]] = []
        self.cancelled = asyncio.Event()
        self.seconds_left: float | None = None

    def service(self, details: grpc.HandlerCallDetails) -> "Handler | None":
        behaviour = self.behaviours.get(details.method)
        if behaviour is None:
            return None
        return grpc.stream_stream_rpc_method_handler(partial(self._behave, behaviour))

    async def _behave(self, behaviour: Behaviour, _: Any, context: Any) -> None:
        self.metadata.append(tuple(context.invocation_metadata()))
        self.seconds_left = context.time_remaining()
        try:
            await behaviour(context)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def echo(context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(request)


@dataclass
class CallResult:
    messages: list[bytes] = field(default_factory=list)
    code: grpc.StatusCode | None = None
    details: str | None = None
    initial: tuple[Pair, ...] = ()
    trailing: tuple[Pair, ...] = ()
    """Without the id, which the proxy adds."""
    id: Any = field(default=None, compare=False)


def begin_call(
    on: grpc.aio.Channel, path: str, message: bytes, **options: Any
) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = on.unary_unary(path)
    return method(message, **options)


def open_stream(
    on: grpc.aio.Channel, path: str, **options: Any
) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = on.stream_stream(path)
    return method(**options)


async def call_unary(on: grpc.aio.Channel, path: str, message: bytes, **options: Any) -> CallResult:
    call = begin_call(on, path, message, **options)
    result = CallResult()
    with suppress(grpc.aio.AioRpcError):
        result.messages.append(await call)
    return await _add_end(call, result)


async def call_stream(to: str, path: str, messages: Sequence[bytes], **options: Any) -> CallResult:
    """Call by the client without asyncio: the other loses an early status (grpc/grpc#36066)."""
    return await asyncio.to_thread(_call_stream, to, path, messages, options)


def _call_stream(
    to: str, path: str, messages: Sequence[bytes], options: dict[str, Any]
) -> CallResult:
    result = CallResult()
    with grpc.insecure_channel(to, options=UNLIMITED) as on:
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = on.stream_stream(path)
        call = method(iter(messages), **options)
        with suppress(grpc.RpcError):
            result.messages.extend(call)
        result.code, result.details = call.code(), call.details()
        result.initial = _list_pairs(call.initial_metadata())
        result.trailing = _list_pairs(call.trailing_metadata())
    return _remove_id(result)


def _list_pairs(metadata: Iterable[Pair] | None) -> tuple[Pair, ...]:
    return tuple((name, value) for name, value in metadata or ())


async def _add_end(call: Any, result: CallResult) -> CallResult:
    result.code, result.details = await call.code(), await call.details()
    result.initial = tuple(await call.initial_metadata())
    result.trailing = tuple(await call.trailing_metadata() or ())
    return _remove_id(result)


def _remove_id(result: CallResult) -> CallResult:
    result.id = dict(result.trailing).get("inference-store-id")
    result.trailing = tuple(pair for pair in result.trailing if pair[0] != "inference-store-id")
    return result


def recognise(path: str) -> Call | None:
    """Recognise infer calls and streams, which are captured here."""
    return replace(V2_GRPC, read=_no_reading).recognise(path, path)


def _no_reading(*_: Any) -> Any:
    raise AssertionError("nothing is read while a call passes")


@dataclass
class ProxySetup:
    """An upstream, the proxy in front of it, and a channel to each."""

    upstream: Upstream
    captures: FakeCaptures
    direct: grpc.aio.Channel
    proxied: grpc.aio.Channel
    routed: list[tuple[str, str | None, str | None]]
    onward: dict[str, Any]
    """Fields of the upstream, and the `call` that every path is."""
    upstream_server: grpc.aio.Server
    server: grpc.aio.Server
    at: tuple[str, str]
    """The addresses of the upstream and the proxy."""


@asynccontextmanager
async def start_proxy(*, by_model: bool = False, **limits: Any) -> AsyncIterator[ProxySetup]:
    """Start an upstream and a proxy on free ports; nobody gets the upstream's when it stops."""
    upstream, captures = Upstream(), FakeCaptures()
    behind = grpc.aio.server(handlers=(upstream,), options=UNLIMITED)
    behind_port = behind.add_insecure_port(f"127.0.0.1:{free_port()}")
    await behind.start()
    to_upstream = channel(f"127.0.0.1:{behind_port}")
    routed: list[tuple[str, str | None, str | None]] = []
    options: dict[str, Any] = {}

    def route(path: str, model: str | None, version: str | None) -> Route:
        routed.append((path, model, version))
        fields = {"name": "nobody" if model == "nobodys" else UPSTREAM} | options
        call = fields.pop("call", None) or recognise(path)
        return Route(UpstreamEntry(grpc=at[0], **fields), call, model=model)

    channels = dict.fromkeys((UPSTREAM, "other") if by_model else (UPSTREAM,), to_upstream)
    fake: Any = captures
    before = server(route, channels, fake, **limits)
    port = before.add_insecure_port("127.0.0.1:0")
    await before.start()
    at = (f"127.0.0.1:{behind_port}", f"127.0.0.1:{port}")
    try:
        async with (
            grpc.aio.insecure_channel(at[0], options=UNLIMITED) as direct,
            grpc.aio.insecure_channel(at[1], options=UNLIMITED) as proxied,
        ):
            yield ProxySetup(
                upstream, captures, direct, proxied, routed, options, behind, before, at
            )
    finally:
        await before.stop(None)
        await to_upstream.close()
        await behind.stop(None)
