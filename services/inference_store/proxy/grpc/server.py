"""The server that stands in front: every method of every service is there."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from .calls import MOST_CALLS, Calls
from .channels import MESSAGE_BYTES, options
from .forwarding import Forwarding
from .methods import METHODS, UNKNOWN, Method
from .onward import Route
from .seen import Captures

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
# What callers may do to keep a connection alive is between them and the upstream.
_PINGS: Final = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)
# A connection without a call ends in time, and one that does not even greet.
_IDLE: Final = (
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
)
# Two proxies on one port would share its calls without a word.
_ALONE: Final = (("grpc.so_reuseport", 0),)


class _EveryMethod(grpc.GenericRpcHandler):
    """A handler for whatever is called; no serializers: messages are bytes."""

    def __init__(self, forwarding: Forwarding, calls: Calls) -> None:
        self._forwarding = forwarding
        self._calls = calls
        self._known = {path: self._handler(path, method) for path, method in METHODS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        path = handler_call_details.method
        if not self._calls.take():
            return _REFUSING
        return self._known.get(path) or self._handler(path, UNKNOWN)

    def _handler(self, path: str, method: Method) -> Handler:
        if method.unary:
            return _plain(grpc.unary_unary_rpc_method_handler, self._forwarding.unary, path, method)
        return _plain(grpc.stream_stream_rpc_method_handler, self._forwarding.stream, path, method)


async def _refuse(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    context.set_details("the proxy has as many calls under way as it may: try again later")


_REFUSING: Final[Handler] = grpc.stream_stream_rpc_method_handler(_refuse)


def _plain(
    handler: Callable[..., Any], behaviour: Callable[..., Any], path: str, method: Method
) -> Handler:
    made: Handler = handler(partial(behaviour, path, method))
    return made


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
    """A server without ports: add them, start it, and stop it with a grace. Inside the loop.

    `most_connections` at once: others are closed. `by_model`: a stream's first message is waited
    for, as it says where the stream goes; not where
    there is one upstream only. `calls` that find no room are refused with RESOURCE_EXHAUSTED.
    `compression` of answers: gRPC does not say what the upstream's was.
    """
    return grpc.aio.server(
        handlers=(_EveryMethod(Forwarding(route, captures, by_model=by_model), calls or Calls()),),
        options=(
            *options(message_bytes),
            *_PINGS,
            *_ALONE,
            *_IDLE,
            ("grpc.max_allowed_incoming_connections", most_connections),
        ),
        compression=compression,
    )
