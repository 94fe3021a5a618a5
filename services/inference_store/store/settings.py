"""Settings, in groups that a service chooses from. Every name carries INFERENCE_STORE_.

Durations are seconds and sizes are bytes, and the names say so.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from dotenv import dotenv_values
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict
from rapidfuzz import process

PREFIX = "INFERENCE_STORE_"
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class UnknownSetting(ValueError):
    """The environment names a setting that does not exist."""


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", use_attribute_docstrings=True
    )


class LogSettings(_Settings):
    """How every service logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line; `text`: for reading in a terminal."""


class PostgresSettings(_Settings):
    """The database that holds the index, the books and the policies."""

    postgres_dsn: SecretStr = SecretStr("postgresql://localhost:5432/inference_store")
    """Where Postgres is: `postgresql://user:password@host:port/database`."""
    postgres_pool_size: Count = 10
    """Most connections one process opens."""
    partition_inferences: Count = 5_000_000
    """Inferences that one partition should hold; spans of new ones adapt to it."""


class KafkaSettings(_Settings):
    """The topic that inference events arrive on."""

    kafka_bootstrap_servers: str = "localhost:9092"
    """Brokers to begin with, `host:port`, separated by commas."""
    kafka_topic: str = "inference-events"
    """Topic that inference events arrive on."""
    kafka_group: str = "inference-store"
    """Consumer group of the ingesters; offsets that count are in Postgres."""
    kafka_cluster: str = "default"
    """Name of the Kafka cluster in the books; another cluster needs another name."""


class BlobSettings(_Settings):
    """The object store that holds data, metadata and responses."""

    s3_endpoint: str | None = None
    """URL of the S3 server; unset: AWS."""
    s3_access_key: SecretStr = SecretStr("")
    """Access key id."""
    s3_secret_key: SecretStr = SecretStr("")
    """Secret access key."""
    s3_region: str = "us-east-1"
    """Region of the buckets."""
    s3_bucket: str = "inference-store"
    """Default bucket: storage keys without `s3://` are in it."""
    s3_allowed_buckets: str = ""
    """Other buckets that events may name, separated by commas; all else is refused."""
    s3_timeout_seconds: Seconds = 10.0
    """How long one request to the object store may take."""
    s3_public_endpoint: str | None = None
    """URL of the S3 server as clients reach it, for presigned links; unset: `S3_ENDPOINT`."""

    @property
    def buckets(self) -> frozenset[str]:
        """Every bucket that may be read or deleted from."""
        named = (name.strip() for name in self.s3_allowed_buckets.split(","))
        return frozenset(name for name in named if name) | {self.s3_bucket}


class CapSettings(_Settings):
    """How much of one inference is indexed; what is over is kept and flagged."""

    max_metadata_bytes: Count = 1024 * 1024
    """Largest metadata blob that is read."""
    max_response_bytes: Count = 4 * 1024 * 1024
    """Largest response blob that is read."""
    max_keys_per_inference: Count = 256
    """Most metadata keys of one inference that are indexed."""
    max_key_characters: Count = 256
    """Longest metadata key that is indexed."""
    max_json_depth: Count = 8
    """Deepest level of a JSON value that is indexed."""
    max_json_leaves: Count = 256
    """Most leaves of one JSON value that are indexed."""
    max_keys_per_model: Count = 10_000
    """Most different metadata keys of one model that are indexed."""
    max_labels_per_model: Count = 100_000
    """Most different labels of one model that are indexed."""
    max_predictions: Count = 10_000
    """Most predictions of one inference that are indexed."""


class IngesterSettings(LogSettings, PostgresSettings, KafkaSettings, BlobSettings, CapSettings):
    """Kafka → Postgres."""

    ingester_admin_host: str = "127.0.0.1"
    """Address of the ingester's admin port (health and metrics)."""
    ingester_admin_port: Port = 9101
    """Admin port of the ingester; 0: any free one."""
    ingester_batch_events: Count = 1000
    """Most events written in one transaction."""
    ingester_batch_rows: Count = 100_000
    """Most rows written in one transaction; a batch with more is cut."""
    ingester_fetch_threads: Count = 16
    """Threads that fetch blobs."""
    ingester_sidecars: Literal["on", "off"] = "off"
    """`on`: other producers' events are kept in the bucket too: it alone can rebuild the index."""
    ingester_poll_seconds: Seconds = 0.5
    """Longest wait for new messages."""
    ingester_retry_seconds: Seconds = 1.0
    """First wait after trouble with a server; doubles up to 30 seconds."""
    ingester_parked_batch_events: Count = 200
    """Most parked or redriven events tried at once."""
    ingester_parked_first_seconds: Seconds = 5.0
    """Wait before an event whose blob is missing is tried again; doubles each time."""
    ingester_parked_longest_seconds: Seconds = 3600.0
    """Longest wait between two tries of a parked event."""
    ingester_parked_give_up_seconds: Seconds = 24 * 3600.0
    """A parked event whose blob has not come by then is a dead letter."""
    ingester_unknown_models: Literal["register", "refuse"] = "register"
    """What an event of an unknown model does: registers it, or is a dead letter."""
    ingester_dead_letter_limit: Count = 500
    """Dead letters and parked events within the window, above which the ingester stops."""
    ingester_dead_letter_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Their share of the window's events, above which (both must be) the ingester stops."""
    ingester_dead_letter_window_seconds: Seconds = 600.0
    """Length of the window of the two limits above."""


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


class RetentionSettings(LogSettings, PostgresSettings, BlobSettings):
    """Deletes by policy, on a schedule."""

    retention_admin_host: str = "127.0.0.1"
    """Address of the retention service's admin port (health and metrics)."""
    retention_admin_port: Port = 9103
    """Admin port of the retention service; 0: any free one."""
    retention_interval_seconds: Seconds = 300.0
    """Time between two scheduled runs."""
    retention_poll_seconds: Seconds = 1.0
    """How often requested runs and erasures are looked for."""
    retention_batch_inferences: Count = 1000
    """Most inferences marked, deleted and forgotten in one step."""
    tombstone_seconds: Seconds = 30 * 24 * 3600.0
    """How long an erased inference is remembered: longer than an event can still arrive."""


GROUPS: tuple[type[_Settings], ...] = (IngesterSettings, ApiSettings, RetentionSettings)


def names() -> frozenset[str]:
    """Every setting's name in the environment."""
    fields = (name for group in GROUPS for name in group.model_fields)
    return frozenset(PREFIX + name.upper() for name in fields)


def refuse_unknown(environment: Mapping[str, str | None] | None = None) -> None:
    """Raise UnknownSetting if the environment names a setting that does not exist."""
    known = names()
    if environment is None:
        environment = {**dotenv_values(".env"), **os.environ}
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not _is_ours(name):
            raise UnknownSetting(_unknown(name, known))


def _is_ours(name: str) -> bool:
    """Names that belong to the tests or to the command line, not to a service."""
    return name.startswith(
        tuple(PREFIX + part for part in ("TEST_", "SERVERS_", "FAILPOINT", "REQUIRE_"))
    )


def _unknown(name: str, known: Iterable[str]) -> str:
    near = [match for match, _, _ in process.extract(name, sorted(known), limit=3)]
    return f"There is no setting {name}. The nearest are {', '.join(near)}."
