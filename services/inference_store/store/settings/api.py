"""The api."""

from typing import Literal

from pydantic import SecretStr

from .blobs import BlobSettings
from .caps import CapSettings
from .group import Count, Port, Seconds
from .logs import LogSettings
from .postgres import PostgresSettings


class ApiSettings(LogSettings, PostgresSettings, BlobSettings, CapSettings):
    """Questions and administration."""

    api_host: str = "127.0.0.1"
    """Address the api binds; another than loopback needs `API_TOKEN` or `AUTH=off`."""
    api_port: Port = 8080
    """Port of the api; 0: any free one."""
    api_admin_host: str = "127.0.0.1"
    """Address of the api's admin port (health and metrics)."""
    api_admin_port: Port = 9102
    """Admin port of the api; 0: any free one."""
    api_token: SecretStr | None = None
    """Static admin token that callers send as `Authorization: Bearer …`."""
    auth: Literal["on", "off"] = "on"
    """`off`: serve any address without a token, on purpose."""
    query_timeout_seconds: Seconds = 10.0
    """Longest time a query may run in Postgres."""
    presigned_url_seconds: Count = 900
    """How long a presigned link works."""
    api_max_body_bytes: Count = 2 * 1024 * 1024
    """Largest body of a request."""
