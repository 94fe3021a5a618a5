"""gRPC in front of any model server: bytes pass both ways without being decoded."""

from .captured_call import CallTarget, Captures, Reservation, Route
from .server import MESSAGE_BYTES, Calls, channel, limit_connections, server

__all__ = [
    "MESSAGE_BYTES",
    "CallTarget",
    "Calls",
    "Captures",
    "Reservation",
    "Route",
    "channel",
    "limit_connections",
    "server",
]
