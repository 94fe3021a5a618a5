"""Connections that callers open."""

from .group import Count, Seconds, SettingsGroup


class ConnectionSettings(SettingsGroup):
    """How many connections the api and the proxy take, and how long each may be silent."""

    connections: Count = 4096
    """Most connections, and gRPC calls, at once; half of them from one address."""
    connection_idle_seconds: Seconds = 75.0
    """How long a connection is kept between two requests."""
