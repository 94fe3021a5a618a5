"""Connections that callers open."""

from .group import Count, Seconds, SettingsGroup


class ConnectionSettings(SettingsGroup):
    """How many connections the api and the proxy take, and how long each may be silent."""

    connections: Count = 4096
    """Most connections at once, or fewer by the limit on open files; others are closed at once."""
    connections_per_address: Count | None = None
    """Most of them from one address; unset: half of them."""
    connection_head_seconds: Seconds = 20.0
    """How long the head of a request may take."""
    connection_body_seconds: Seconds = 30.0
    """How long a body may take, and a second more for each 500 bytes of it."""
    connection_idle_seconds: Seconds = 75.0
    """How long a connection is kept between two requests."""
    connection_write_seconds: Seconds = 60.0
    """How long a caller may read nothing of an answer."""
