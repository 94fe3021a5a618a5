"""Ports for untrusted callers: limits on connections, and on how long each may be silent."""

from .connections import Connections
from .from_settings import build_connections, build_limits
from .guarded_connection import Limits, current
from .listener import Listener, PortTaken, listen
from .open_files import connections_within
from .request_bodies import Served

__all__ = [
    "Connections",
    "Limits",
    "Listener",
    "PortTaken",
    "Served",
    "build_connections",
    "build_limits",
    "connections_within",
    "current",
    "listen",
]
