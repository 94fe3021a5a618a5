"""The api."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, FilePath, SecretStr

from .access import AccessSettings
from .admin import AdminSettings
from .blobs import BlobSettings
from .caps import CapSettings
from .connections import ConnectionSettings
from .dsn import CheckDsn
from .group import Count, Port, Seconds, SecondsOrZero
from .logs import LogSettings
from .postgres import PostgresSettings
from .tls_files import pair_faults


class ApiSettings(
    LogSettings,
    AdminSettings,
    PostgresSettings,
    BlobSettings,
    CapSettings,
    ConnectionSettings,
    AccessSettings,
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
    api_admin_port: Port = 9102
    """Admin port of the api; 0: any free one."""
    postgres_read_dsn: Annotated[SecretStr | None, CheckDsn] = None
    """A read replica that answers the questions; unset: `POSTGRES_DSN` answers them."""
    query_timeout_seconds: Seconds = 10.0
    """Longest time a query may run in Postgres."""
    page_seconds: Seconds = 0.8
    """How long a page in order of time searches on once it can say how far it has come."""
    queries_at_once: Count | None = None
    """Most queries of a process at once; unset: 6 for each 10 of `POSTGRES_POOL_SIZE`."""
    query_wait_seconds: SecondsOrZero = 2.0
    """How long a query waits for its turn before it is refused."""
    streams_at_once: Count = 32
    """Most streams of a process at once, and as many of arrivals."""
    console: Literal["on", "off"] = "on"
    """`off`: the api serves no console, and `/` leads nowhere."""
    thumbnail_processes: Annotated[int, Field(ge=0, le=64)] = 2
    """Most processes that make thumbnails at once, with up to 384 MiB each; 0: none are made."""
    presigned_urls: Literal["on", "off"] = "on"
    """`off`: `urls` name the api's own routes, and blobs are read only through the api."""
    presigned_url_seconds: Annotated[int, Field(gt=0, le=7 * 24 * 3600)] = 900
    """How long a presigned link works."""
    export_most_seconds: Seconds = 90 * 24 * 3600.0
    """How long an export can stay in the bucket at most."""
    export_confirm_above: Count = 1_000_000
    """Most inferences of an export that needs no `confirm`."""
    policy_grace_seconds: SecondsOrZero = 3600.0
    """How long a retention policy that would delete something stored waits before it begins."""
    policy_preview_seconds: Seconds = 10.0
    """How long is looked for what a policy would delete; beyond it the answer is `partial`."""
    api_max_body_bytes: Count = 2 * 1024 * 1024
    """Largest body of a request."""

    @property
    def most_queries(self) -> int:
        """Queries at once: the connections that are left are for look-ups, writes and keys."""
        return self.queries_at_once or max(1, self.postgres_pool_size * 6 // 10)

    @property
    def most_queries_of_one(self) -> int:
        """Queries at once of one caller."""
        return max(1, self.most_queries // 2)

    @property
    def most_streams_of_one(self) -> int:
        """Streams at once of one caller."""
        return max(1, self.streams_at_once // 2)

    @property
    def most_followers_of_one(self) -> int:
        """Streams of arrivals at once of one caller."""
        return max(1, self.streams_at_once // 4)

    def contradictions(self) -> Iterator[str]:
        """Yield the faults of certificates, and of limits on queries that leave no connections."""
        yield from super().contradictions()
        names = ("API_TLS_CERTIFICATE_FILE", "API_TLS_KEY_FILE")
        yield from pair_faults(names, self.api_tls_certificate_file, self.api_tls_key_file)
        if self.queries_at_once is not None and self.queries_at_once >= self.postgres_pool_size:
            yield (
                f"$QUERIES_AT_ONCE={self.queries_at_once} leaves none of the"
                f" $POSTGRES_POOL_SIZE={self.postgres_pool_size} connections for look-ups and"
                " writes: make it smaller, or the pool larger"
            )
