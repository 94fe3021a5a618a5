"""gRPC in front of any model server: bytes pass both ways without being decoded."""

from .captured_call import CallTarget, Captures, Route
from .server import MESSAGE_BYTES, Calls, channel, limit_connections, server

__all__ = [
    "MESSAGE_BYTES",
    "CallTarget",
    "Calls",
    "Captures",
    "Route",
    "channel",
    "limit_connections",
    "server",
]
