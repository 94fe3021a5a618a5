"""The server that stands in front: every method of every service is there."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

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
# Two proxies on one port would share its calls without a word.
_ALONE: Final = (("grpc.so_reuseport", 0),)


class _EveryMethod(grpc.GenericRpcHandler):
    """A handler for whatever is called; no serializers: messages are bytes."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._known = {path: self._handler(path, method) for path, method in METHODS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        path = handler_call_details.method
        return self._known.get(path) or self._handler(path, UNKNOWN)

    def _handler(self, path: str, method: Method) -> Handler:
        if method.unary:
            return _plain(grpc.unary_unary_rpc_method_handler, self._forwarding.unary, path, method)
        return _plain(grpc.stream_stream_rpc_method_handler, self._forwarding.stream, path, method)


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
    most_calls: int | None = None,
    compression: grpc.Compression | None = None,
) -> grpc.aio.Server:
    """A server without ports: add them, start it, and stop it with a grace. Inside the loop.

    `by_model`: a stream's first message is waited for, as it says where the stream goes; not where
    there is one upstream only. `most_calls` at once: more are refused with RESOURCE_EXHAUSTED.
    `compression` of answers: gRPC does not say what the upstream's was.
    """
    return grpc.aio.server(
        handlers=(_EveryMethod(Forwarding(route, captures, by_model=by_model)),),
        options=(*options(message_bytes), *_PINGS, *_ALONE),
        maximum_concurrent_rpcs=most_calls,
        compression=compression,
    )
