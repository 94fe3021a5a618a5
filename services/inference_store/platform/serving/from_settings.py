"""Builds connections and their limits from the settings."""

from inference_store.platform.settings import ConnectionSettings

from .connections import Connections, Port
from .guarded_connection import Limits
from .open_files import connections_within


def build_connections(settings: ConnectionSettings, port: Port, *, shares: int = 1) -> Connections:
    """Return the connections of a port: as many as the settings and a share of the open files
    allow."""
    most = connections_within(settings.connections, shares=shares)
    of_one = settings.connections_per_address or max(1, most // 2)
    return Connections(port, most, of_one)


def build_limits(settings: ConnectionSettings) -> Limits:
    """Return the time limits."""
    return Limits(
        head=settings.connection_head_seconds,
        body=settings.connection_body_seconds,
        idle=settings.connection_idle_seconds,
        write=settings.connection_write_seconds,
    )
