"""REST through the proxy: requests and answers are forwarded unchanged."""

from .forwarding import Forwarding, Server, build_server
from .messages import Stripping, Upstreams

__all__ = ["Forwarding", "Server", "Stripping", "Upstreams", "build_server"]
