"""The server for callers: it answers every method of every service."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from .call_target import Route
from .calls import MOST_CALLS, Calls
from .captured_call import Captures
from .channels import MESSAGE_BYTES, options
from .forwarding import Forwarding
from .methods import METHODS, UNKNOWN, Method

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
