"""The api."""

from typing import Annotated, Literal, Self

from pydantic import Field, FilePath, SecretStr, model_validator

from .access import AccessSettings
from .admin import AdminSettings
from .blobs import BlobSettings
from .caps import CapSettings
from .group import Count, Port, Seconds
from .logs import LogSettings
from .postgres import PostgresSettings
from .tls_files import check_pair


class ApiSettings(
    LogSettings, AdminSettings, PostgresSettings, BlobSettings, CapSettings, AccessSettings
):
    """Questions and administration."""

    api_host: str = "127.0.0.1"
    """Address the api binds."""
    api_port: Port = 8080
    """Port of the api; 0: any free one."""
    api_tls_certificate_file: FilePath | None = None
    """Certificate (PEM, with its chain) of the api; set: it is served over https."""
    api_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""
    api_admin_host: str = "127.0.0.1"
    """Address of the api's admin port (health and metrics)."""
    api_admin_port: Port = 9102
    """Admin port of the api; 0: any free one."""
    postgres_read_dsn: SecretStr | None = None
    """A read replica that answers the questions; unset: `POSTGRES_DSN` answers them."""
    query_timeout_seconds: Seconds = 10.0
    """Longest time a query may run in Postgres."""
    presigned_urls: Literal["on", "off"] = "on"
    """`off`: `urls` name the api's own routes, and blobs are read only through the api."""
    presigned_url_seconds: Annotated[int, Field(gt=0, le=7 * 24 * 3600)] = 900
    """How long a presigned link works."""
    api_max_body_bytes: Count = 2 * 1024 * 1024
    """Largest body of a request."""

    @model_validator(mode="after")
    def _api_fits(self) -> Self:
        names = ("API_TLS_CERTIFICATE_FILE", "API_TLS_KEY_FILE")
        check_pair(names, self.api_tls_certificate_file, self.api_tls_key_file)
        return self
