"""A model server over gRPC that knows bytes only, and what a caller sees of a call to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import grpc

from inference_store.proxy.capture import ID_HEADER
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.grpc import Onward, channel, server
from inference_store.proxy.protocols.protocol import Call, Protocol
from inference_store.proxy.rules import Rules

V2 = "/inference.GRPCInferenceService/"
INFER, STREAM = V2 + "ModelInfer", V2 + "ModelStreamInfer"
UNLIMITED = (("grpc.max_receive_message_length", -1),)
Behaviour = Callable[[Any], Any]
Pair = tuple[str, str | bytes]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class Upstream(grpc.GenericRpcHandler):
    """Behaviours by path; what it was asked is kept. Each is given the context alone."""

    def __init__(self) -> None:
        self.behaviours: dict[str, Behaviour] = {}
        self.metadata: list[tuple[Pair, ...]] = []
        self.cancelled = asyncio.Event()
        self.left: float | None = None

    def service(self, details: grpc.HandlerCallDetails) -> "Handler | None":
        behaviour = self.behaviours.get(details.method)
        if behaviour is None:
            return None
        return grpc.stream_stream_rpc_method_handler(partial(self._behave, behaviour))

    async def _behave(self, behaviour: Behaviour, _: Any, context: Any) -> None:
        self.metadata.append(tuple(context.invocation_metadata()))
        self.left = context.time_remaining()
        try:
            await behaviour(context)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclass
class Seen:
    """What a caller sees."""

    messages: list[bytes] = field(default_factory=list)
    code: grpc.StatusCode | None = None
    details: str | None = None
    initial: tuple[Pair, ...] = ()
    trailing: tuple[Pair, ...] = ()
    """Without the proxy's own: the id."""
    id: Any = field(default=None, compare=False)


def ask(
    on: grpc.aio.Channel, path: str, message: bytes, **options: Any
) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
    """A call of one message, begun."""
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = on.unary_unary(path)
    return method(message, **options)


def open_stream(
    on: grpc.aio.Channel, path: str, **options: Any
) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
    """A call whose messages are yet to be written."""
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = on.stream_stream(path)
    return method(**options)


async def unary(on: grpc.aio.Channel, path: str, message: bytes, **options: Any) -> Seen:
    call = ask(on, path, message, **options)
    seen = Seen()
    with suppress(grpc.aio.AioRpcError):
        seen.messages.append(await call)
    return await _ended(call, seen)


async def stream(to: str, path: str, messages: Sequence[bytes], **options: Any) -> Seen:
    """By the client without asyncio: the other one loses an early status (grpc/grpc#36066)."""
    return await asyncio.to_thread(_stream, to, path, messages, options)


def _stream(to: str, path: str, messages: Sequence[bytes], options: dict[str, Any]) -> Seen:
    seen = Seen()
    with grpc.insecure_channel(to, options=UNLIMITED) as on:
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = on.stream_stream(path)
        call = method(iter(messages), **options)
        with suppress(grpc.RpcError):
            seen.messages.extend(call)
        seen.code, seen.details = call.code(), call.details()
        seen.initial = _pairs(call.initial_metadata())
        seen.trailing = _pairs(call.trailing_metadata())
    return _without_id(seen)


def _pairs(metadata: Iterable[Pair] | None) -> tuple[Pair, ...]:
    return tuple((name, value) for name, value in metadata or ())


async def _ended(call: Any, seen: Seen) -> Seen:
    seen.code, seen.details = await call.code(), await call.details()
    seen.initial = tuple(await call.initial_metadata())
    seen.trailing = tuple(await call.trailing_metadata() or ())
    return _without_id(seen)


def _without_id(seen: Seen) -> Seen:
    seen.id = dict(seen.trailing).get(ID_HEADER)
    seen.trailing = tuple(pair for pair in seen.trailing if pair[0] != ID_HEADER)
    return seen


class Ticket:
    def __init__(self, captures: "Captures", size: int) -> None:
        self.refused = size > captures.most
        self.captures = captures
        self.room = captures.room - (0 if self.refused else size)

    def more(self, size: int) -> bool:
        self.room -= size
        return self.room >= 0

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        self.captures.finished.append((exchange, call, rules, model))
        self.captures.handed_over.put_nowait(exchange)


class Captures:
    """Gives places as long as there is room, and keeps what is handed over."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.most = 1 << 30
        """The largest body that is kept."""
        self.begun = self.head = 0
        self.handed_over: asyncio.Queue[Exchange] = asyncio.Queue()
        self.finished: list[tuple[Exchange, Call, Rules, str]] = []

    def begin(self, size: int, head: int) -> Ticket | None:
        self.head = head
        if size > self.room:
            return None
        self.begun += 1
        return Ticket(self, size)

    async def exchange(self) -> Exchange:
        """The next that is handed over."""
        async with asyncio.timeout(60):
            return await self.handed_over.get()


def captured(path: str) -> Call | None:
    """Infer and streams are captured here."""
    protocol = Protocol(
        name="v2-grpc", title="", transport="grpc", recognise=lambda *_: None, read=_no_reading
    )
    return Call(protocol, "infer") if path in {INFER, STREAM} else None


def _no_reading(*_: Any) -> Any:
    raise AssertionError("nothing is read while a call passes")


@dataclass
class Line:
    """An upstream, the proxy before it, and a channel to each."""

    upstream: Upstream
    captures: Captures
    direct: grpc.aio.Channel
    proxied: grpc.aio.Channel
    asked: list[tuple[str, str | None, str | None]]
    onward: dict[str, Any]
    """What the way on is to have beside the channel."""
    upstream_server: grpc.aio.Server
    server: grpc.aio.Server
    at: tuple[str, str]
    """The addresses of upstream and proxy."""


@asynccontextmanager
async def line(*, by_model: bool = False, **limits: Any) -> AsyncIterator[Line]:
    """Everything started, on free ports."""
    upstream, captures = Upstream(), Captures()
    behind = grpc.aio.server(handlers=(upstream,), options=UNLIMITED)
    behind_port = behind.add_insecure_port("127.0.0.1:0")
    await behind.start()
    to_upstream = channel(f"127.0.0.1:{behind_port}")
    asked: list[tuple[str, str | None, str | None]] = []
    options: dict[str, Any] = {}

    def route(path: str, model: str | None, version: str | None) -> Onward | None:
        asked.append((path, model, version))
        if model == "nobodys":
            return None
        said = {"call": captured(path), "model": model or "default"} | options
        return Onward(channel=to_upstream, **said)

    before = server(route, captures, by_model=by_model, **limits)
    port = before.add_insecure_port("127.0.0.1:0")
    await before.start()
    at = (f"127.0.0.1:{behind_port}", f"127.0.0.1:{port}")
    try:
        async with (
            grpc.aio.insecure_channel(at[0], options=UNLIMITED) as direct,
            grpc.aio.insecure_channel(at[1], options=UNLIMITED) as proxied,
        ):
            yield Line(upstream, captures, direct, proxied, asked, options, behind, before, at)
    finally:
        await before.stop(None)
        await to_upstream.close()
        await behind.stop(None)
