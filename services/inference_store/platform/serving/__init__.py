"""Ports that strangers may connect to: how many connections, and how long each may be silent."""

from .chosen import connections_of, limits_of
from .connections import Connections
from .guarded import Limits, current
from .listening import Listening, PortTaken, listen
from .open_files import connections_within
from .request_bodies import Served

__all__ = [
    "Connections",
    "Limits",
    "Listening",
    "PortTaken",
    "Served",
    "connections_of",
    "connections_within",
    "current",
    "limits_of",
    "listen",
]
