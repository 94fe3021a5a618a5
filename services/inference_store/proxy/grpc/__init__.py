"""gRPC in front of any model server: bytes pass both ways, undecoded."""

from .calls import Calls
from .channels import MESSAGE_BYTES, channel
from .onward import Onward, Route
from .seen import Captures, Ticket
from .server import server

__all__ = ["MESSAGE_BYTES", "Calls", "Captures", "Onward", "Route", "Ticket", "channel", "server"]
