"""Builds connections and their limits from the settings."""

from inference_store.platform.settings import ConnectionSettings

from .connections import Connections, Port
from .guarded_connection import Limits
from .open_files import connections_within


def build_connections(settings: ConnectionSettings, port: Port, *, shares: int = 1) -> Connections:
    """Return the connections of a port: as many as the settings and a share of the open files
    allow."""
    most = connections_within(settings.connections, shares=shares)
    return Connections(port, most, max(1, most // 2))


def build_limits(settings: ConnectionSettings) -> Limits:
    """Return the time limits."""
    return Limits(idle=settings.connection_idle_seconds)
