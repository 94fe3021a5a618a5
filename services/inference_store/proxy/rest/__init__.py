"""REST through the proxy: what comes in is what goes on, and back."""

from .forwarding import Forwarding
from .server import Server, server_of
from .stripping import Stripping
from .upstreams import Upstreams

__all__ = ["Forwarding", "Server", "Stripping", "Upstreams", "server_of"]
