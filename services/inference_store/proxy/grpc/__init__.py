"""gRPC in front of any model server: bytes pass both ways without being decoded."""

from .call_target import CallTarget, Route
from .calls import Calls
from .captured_call import Captures, Reservation
from .channels import MESSAGE_BYTES, channel
from .connection_limit import limit_connections
from .server import server

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
