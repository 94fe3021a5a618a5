"""REST through the proxy: what comes in is what goes on, and back."""

from .forwarding import Forwarding
from .server import Server, server_of
from .upstreams import Upstreams

__all__ = ["Forwarding", "Server", "Upstreams", "server_of"]
