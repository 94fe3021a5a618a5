"""REST through the proxy: requests and answers are forwarded unchanged."""

from .forwarding import Forwarding
from .server import Server, build_server
from .stripping import Stripping
from .upstreams import Upstreams

__all__ = ["Forwarding", "Server", "Stripping", "Upstreams", "build_server"]
