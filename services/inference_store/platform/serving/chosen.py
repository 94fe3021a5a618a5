"""Connections and their limits as the settings have them."""

from inference_store.platform.settings import ConnectionSettings

from .connections import Connections, Port
from .guarded import Limits
from .open_files import connections_within


def connections_of(settings: ConnectionSettings, port: Port, *, shares: int = 1) -> Connections:
    """As many as the settings say, and `shares` of the open files allow."""
    most = connections_within(settings.connections, shares=shares)
    of_one = settings.connections_per_address or max(1, most // 2)
    return Connections(port, most, of_one)


def limits_of(settings: ConnectionSettings) -> Limits:
    """The times."""
    return Limits(
        head=settings.connection_head_seconds,
        body=settings.connection_body_seconds,
        idle=settings.connection_idle_seconds,
        write=settings.connection_write_seconds,
    )
