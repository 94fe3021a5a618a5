"""The settings of each service."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import AfterValidator, BeforeValidator, Field, FilePath, SecretStr, ValidationError
from pydantic_settings import NoDecode

from inference_store.platform.settings.group import (
    PREFIX,
    CheckDsn,
    Count,
    Port,
    Seconds,
    SecondsOrZero,
    SettingsGroup,
    WrongSetting,
    file_names,
    sentences,
)
from inference_store.platform.settings.parts import (
    AdminSettings,
    BlobSettings,
    CapSettings,
    CertificateSettings,
    ConnectionSettings,
    KafkaSettings,
    LogSettings,
    PostgresSettings,
)

_LEAST_TOKEN_BYTES: Final = 16


def _secure(url: str) -> str:
    """Return a URL if it is secure: an impostor of the issuer could let anyone in, so only this
    machine may do without TLS. It stays as it is written: issuers are compared by text."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname):
        return url
    raise ValueError("it is a URL that begins with https:// (http:// on loopback alone)")


def is_loopback(host: str | None) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _hard_to_guess(token: SecretStr | None) -> SecretStr | None:
    """An empty token is none."""
    if token is not None and 0 < len(token.get_secret_value().encode()) < _LEAST_TOKEN_BYTES:
        raise ValueError(
            f"it has fewer than {_LEAST_TOKEN_BYTES} bytes and could be guessed:"
            " `openssl rand -base64 32` prints a longer one"
        )
    return token


def _parsed(roles: Any) -> Any:
    """Parse JSON: if pydantic-settings did and refused it, no other error would be reported."""
    try:
        return json.loads(roles) if isinstance(roles, str) else roles
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is not JSON ({error.msg} at character {error.pos + 1}): write"
            ' {"ops": [{"role": "owner"}]}'
        ) from None


class RoleSettings(SettingsGroup):
    """What the roles of an OIDC issuer's tokens may do."""

    oidc_roles_claim: str = "roles"
    """Claim with the roles of a token. A dot selects a nested claim, as in `realm_access.roles`."""
    oidc_roles: Annotated[dict[str, Any], NoDecode, BeforeValidator(_parsed)] = Field(default={})
    """Grants for each value of that claim, as JSON: `{"ops": [{"role": "owner"}]}`."""


class AccessSettings(RoleSettings):
    """Keys, tokens of an OIDC issuer, limits."""

    auth: Literal["on", "off"] = "on"
    """`off`: no access control. Anyone who reaches the api by a loopback name may do everything."""
    api_token: Annotated[SecretStr | None, AfterValidator(_hard_to_guess)] = None
    """Token of at least 16 bytes with all rights, to create the first API keys."""
    oidc_issuer: Annotated[str, AfterValidator(_secure)] | None = None
    """URL of the OpenID Connect issuer, exactly as in the `iss` claim of its tokens."""
    oidc_audience: str | None = None
    """Required audience of tokens. Required with `OIDC_ISSUER`."""
    oidc_jwks_url: Annotated[str, AfterValidator(_secure)] | None = None
    """URL of the issuer's keys. Default: from its discovery document."""
    oidc_client_id: str | None = None
    """Client ID at the issuer. If set, people can sign in to the console."""
    oidc_client_secret: SecretStr | None = None
    """Client secret, if the issuer assigned one."""
    oidc_device_client_id: str | None = None
    """Public client ID with the device flow, for `istore login`."""
    oidc_scopes: str = "openid"
    """Space-separated scopes to request at sign-in, including `openid`."""
    api_public_url: Annotated[str, AfterValidator(_secure)] | None = None
    """URL at which browsers reach the api, such as `https://store.example`, for OIDC sign-in."""
    api_session_seconds: Annotated[float, Field(ge=60, le=30 * 24 * 3600)] = 12 * 3600.0
    """Maximum duration of a console session. It also ends with its key or token."""
    api_session_idle_seconds: Annotated[float, Field(ge=300, le=30 * 24 * 3600)] = 3600.0
    """Idle time after which a console session ends."""
    api_rate_limit_per_minute: Annotated[int, Field(ge=0)] = 6000
    """Requests per minute per key or subject; failed logins per address: 1 % of it. 0: no limit."""
    api_cors_origins: str = ""
    """Comma-separated list of origins allowed by CORS; `*`: any."""
    api_trusted_proxies: str = ""
    """Comma-separated addresses or networks whose X-Forwarded-For is trusted."""

    @property
    def api_failed_tokens_per_minute(self) -> int:
        """Keys and tokens of an address that may fail in a minute; those in use pass. 0: no
        limit."""
        return math.ceil(self.api_rate_limit_per_minute / 100)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting that the issuer or signing in lacks."""
        yield from super().contradictions()
        if self.oidc_issuer is not None and not self.oidc_audience:
            yield (
                "$OIDC_ISSUER needs $OIDC_AUDIENCE: else tokens that were meant for other programs"
                " would open this one"
            )
        if self.oidc_client_id is not None:
            for name in ("oidc_issuer", "api_public_url"):
                if getattr(self, name) is None:
                    yield f"$OIDC_CLIENT_ID needs ${name.upper()}"
        elif self.oidc_client_secret is not None:
            yield "$OIDC_CLIENT_SECRET is set and $OIDC_CLIENT_ID is not"
        if self.oidc_device_client_id is not None and self.oidc_issuer is None:
            yield "$OIDC_DEVICE_CLIENT_ID needs $OIDC_ISSUER"
        if "openid" not in self.oidc_scopes.split():
            yield "$OIDC_SCOPES lacks `openid`: the issuer would send no ID token"


class AuditSettings(SettingsGroup):
    """How long it is kept what was done."""

    audit_keep_seconds: Seconds = 400 * 24 * 3600.0
    """Retention of the audit and of ended runs, exports, reconciliations and erasures."""


def _proxy(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise ValueError("expected http://host:port or https://host:port, without a name")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("expected no path: stored requests have their own")
    return url.rstrip("/")


class ReplaySettings(SettingsGroup):
    """Where stored requests may be sent again."""

    replay_proxy: Annotated[str, AfterValidator(_proxy)] | None = None
    """URL of the proxy that replays are sent to, and nothing else. Default: no replays."""
    replay_proxy_grpc_port: Port = 8091
    """gRPC port of that proxy."""
    replay_wait_seconds: Seconds = 300.0
    """How long the capture of a replayed call is waited for."""


class ApiSettings(
    LogSettings,
    AdminSettings,
    PostgresSettings,
    BlobSettings,
    CapSettings,
    ConnectionSettings,
    AccessSettings,
    ReplaySettings,
):
    """Questions and administration."""

    api_host: str = "127.0.0.1"
    """Address that the api binds to."""
    api_port: Port = 8080
    """Port of the api; 0: any free port."""
    api_tls_certificate_file: FilePath | None = None
    """Certificate chain (PEM) of the api. If set, the api uses HTTPS."""
    api_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""
    api_admin_port: Port = 9102
    """Admin port of the api; 0: any free port."""
    postgres_read_dsn: Annotated[SecretStr | None, CheckDsn] = None
    """Connection URL of a read replica for queries. Default: `POSTGRES_DSN`."""
    query_timeout_seconds: Seconds = 10.0
    """Maximum duration of a query, and of the preview of a policy."""
    streams_at_once: ClassVar[int] = 32
    """Most streams of a process at once, and as many of arrivals."""
    console: Literal["on", "off"] = "on"
    """`off`: do not serve the console."""
    thumbnail_processes: Annotated[int, Field(ge=0, le=64)] = 2
    """Maximum number of thumbnail processes, with up to 384 MiB each; 0: no thumbnails."""
    presigned_urls: Literal["on", "off"] = "on"
    """`off`: `urls` point to the api, and blobs are read only through it."""
    presigned_url_seconds: Annotated[int, Field(gt=0, le=7 * 24 * 3600)] = 900
    """Lifetime of a link to a blob."""
    export_most_seconds: ClassVar[float] = 90 * 24 * 3600.0
    """How long an export can stay in the bucket at most."""
    export_confirm_above: ClassVar[int] = 1_000_000
    """Most inferences of an export that needs no `confirm`."""
    ground_truth_bytes: ClassVar[int] = 1024**3
    """Largest body of ground truth in bulk. It is on the disk while it is read."""
    policy_grace_seconds: SecondsOrZero = 3600.0
    """Delay before a retention policy that deletes stored data takes effect."""
    api_max_body_bytes: ClassVar[int] = 2 * 1024 * 1024
    """Largest body of a request."""

    @property
    def page_seconds(self) -> float:
        """How long a page in order of time searches on once it can say how far it has come."""
        return self.query_timeout_seconds / 12

    @property
    def query_wait_seconds(self) -> float:
        """How long a query waits for its turn before it is refused."""
        return self.query_timeout_seconds / 5

    @property
    def most_queries(self) -> int:
        """Queries at once: the connections that are left are for look-ups, writes and keys."""
        return max(1, self.postgres_pool_size * 6 // 10)

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


class RedactionSettings(SettingsGroup):
    """What redactions need."""

    proxy_redaction_key: SecretStr = SecretStr("")
    """Key of the keyed hash that replaces redacted values."""


class RegistryKeySettings(SettingsGroup):
    """The key by which a proxy reads registrations."""

    proxy_registry_key: SecretStr = SecretStr("")
    """API key with the role `reader` for the registrations; `migrate` creates it if it is set."""


class CaptureSettings(RedactionSettings, RegistryKeySettings):
    """What is done with an exchange after its answer went back."""

    proxy_capture_bytes: Count = 64 * 1024 * 1024
    """Memory limit for captures, and again for requests that are being stripped."""
    proxy_body_bytes: Count = 16 * 1024 * 1024
    """Maximum size of the bodies of one exchange. Larger ones are recorded without bodies."""
    proxy_key_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)*$")] = (
        "captures"
    )
    """Key prefix of captured blobs."""
    proxy_capture_wait_seconds: SecondsOrZero = 0.5
    """How long a call may wait for room for its capture, on a busy processor. 0: none waits."""
    proxy_packing: Literal["on", "off"] = "on"
    """`on`: many captures of a model share an object, a segment; `off`: three objects each."""
    proxy_segment_bytes: Count = 8 * 1024 * 1024
    """Size at which a segment is closed. A larger capture is a segment of its own."""
    proxy_segment_captures: Annotated[int, Field(gt=0, le=4096)] = 256
    """Captures after which a segment is closed."""
    proxy_segment_seconds: Seconds = 2.0
    """Time after which a segment is closed."""
    proxy_report_seconds: Seconds = 10.0
    """Interval between reports of the proxy, and between reads of the registrations."""
    proxy_registry_url: Annotated[str, Field(pattern=r"^(https?://[^ ]+)?$")] = ""
    """URL of the api, to read model registrations from. Default: only the file is used."""
    proxy_registry_file: Path | None = None
    """File that caches the registrations, for a start while the api is unavailable."""
    proxy_spool: Literal["off", "overflow", "all"] = "off"
    """`overflow`: spool captures to disk if half the memory is used; `all`: spool every capture."""
    proxy_spool_directory: Path | None = None
    """Directory of the spool. Several proxies may share it."""
    proxy_spool_bytes: Count = 1024 * 1024 * 1024
    """Maximum total size of the spool directory. Beyond it, captures wait in memory."""
    proxy_spool_fsync: Literal["on", "off"] = "off"
    """`on`: fsync each spooled capture, so that it survives a power failure."""
    proxy_grace_seconds: Seconds = 20.0
    """Maximum time at shutdown to finish calls and publish captures."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting that needs another one."""
        yield from super().contradictions()
        if self.proxy_spool != "off" and self.proxy_spool_directory is None:
            yield f"$PROXY_SPOOL={self.proxy_spool} needs $PROXY_SPOOL_DIRECTORY"
        if self.proxy_registry_url and not self.proxy_registry_key.get_secret_value():
            yield "$PROXY_REGISTRY_URL needs $PROXY_REGISTRY_KEY: a key that may read"
        if self.proxy_body_bytes > self.proxy_capture_bytes:
            yield "$PROXY_BODY_BYTES is over $PROXY_CAPTURE_BYTES: none would be kept"


class UpstreamSettings(RedactionSettings):
    """Which model servers there are."""

    proxy_config: FilePath | None = None
    """File with upstreams and models. Default: one upstream, from the next two settings."""
    proxy_upstream: str | None = None
    """REST URL of the model server, if there is no file."""
    proxy_upstream_grpc: str | None = None
    """gRPC address (`host:port`) of the model server, if there is no file."""
    proxy_protocols: str = "v2,v2-grpc"
    """Comma-separated list of the model server's protocols to capture."""
    proxy_cloud_events: Annotated[str, Field(pattern=r"^(/[^ ?#]*)?$")] = ""
    """Path at which the REST port takes CloudEvents of request loggers, if there is no file."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if upstreams are set twice, or not at all."""
        yield from super().contradictions()
        names = ("proxy_upstream", "proxy_upstream_grpc", "proxy_cloud_events")
        other = next((name.upper() for name in names if getattr(self, name)), None)
        if self.proxy_config is not None and other:
            yield f"$PROXY_CONFIG and ${other} are set: keep the file, or the other"
        if self.proxy_config is None and not other:
            yield "set $PROXY_UPSTREAM, $PROXY_UPSTREAM_GRPC, $PROXY_CLOUD_EVENTS or $PROXY_CONFIG"


class ProxySettings(
    UpstreamSettings,
    CaptureSettings,
    KafkaSettings,
    BlobSettings,
    ConnectionSettings,
    AdminSettings,
    LogSettings,
):
    """Stands before model servers and captures what goes through."""

    proxy_host: str = "127.0.0.1"
    """Address that the proxy binds to."""
    proxy_port: Port = 8090
    """REST port; 0: any free port."""
    proxy_grpc_port: Port = 8091
    """gRPC port, open if an upstream serves gRPC; 0: any free port."""
    proxy_tls_certificate_file: FilePath | None = None
    """Certificate chain (PEM) of both ports. If set, both use TLS."""
    proxy_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""
    proxy_path_prefixes: Annotated[str, Field(pattern=r"^(/[^, ]+( *, */[^, ]+)*)?$")] = (
        "/api/serve/serve-model-*-pred"
    )
    """Comma-separated path prefixes to strip before matching; `*` matches within a segment."""
    proxy_cloud_events_token: SecretStr = SecretStr("")
    """Token that senders of CloudEvents need: as a bearer's, or as any user's password."""
    proxy_cloud_events_seconds: Seconds = 60.0
    """How long a logged request waits for its answer: longer than the slowest call takes."""
    proxy_grpc_message_bytes: Count = 256 * 1024 * 1024
    """Maximum size of a gRPC message. Larger messages are refused."""
    proxy_admin_port: Port = 9104
    """Admin port of the proxy; 0: any free port."""


class IngesterSettings(
    LogSettings, AdminSettings, PostgresSettings, KafkaSettings, BlobSettings, CapSettings
):
    """Kafka → Postgres."""

    ingester_admin_port: Port = 9101
    """Admin port of the ingester; 0: any free port."""
    ingester_instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$")] = ""
    """Unique, stable member name in the consumer group. Default: host and admin port."""
    ingester_batch_events: Count = 1000
    """Maximum number of events per transaction."""
    ingester_sidecars: Literal["on", "off"] = "off"
    """`on`: also keep other producers' events in the bucket, which can then rebuild the index."""
    ingester_parked_give_up_seconds: Seconds = 24 * 3600.0
    """Time after which a parked event whose blob is missing becomes a dead letter."""
    ingester_unknown_models: Literal["register", "refuse"] = "register"
    """`register`: register the model of an event; `refuse`: make the event a dead letter."""
    ingester_dead_letter_limit: Count = 500
    """Number of dead letters and parked events in ten minutes that stops the ingester."""


class ReconcileSettings(SettingsGroup):
    """Where inferences' objects lie, and when they are compared with the index."""

    reconcile_schedule: Literal["off", "daily"] = "off"
    """`daily`: compare the bucket with the index once a day."""
    reconcile_prefixes: str = "captures"
    """Comma-separated prefixes that hold only inference blobs: `prefix` or `s3://bucket/prefix`."""
    reconcile_grace_seconds: SecondsOrZero = 24 * 3600.0
    """Minimum age of an orphan, relative to what the ingesters have read."""


class RetentionSettings(
    LogSettings,
    AdminSettings,
    PostgresSettings,
    BlobSettings,
    AuditSettings,
    ReconcileSettings,
    CertificateSettings,
    ReplaySettings,
):
    """Deletes by policy, on a schedule."""

    retention_admin_port: Port = 9103
    """Admin port of the retention service; 0: any free port."""
    retention_interval_seconds: Seconds = 300.0
    """Interval between scheduled runs."""
    retention_batch_inferences: Count = 1000
    """Maximum number of inferences marked or deleted in one step."""
    export_part_inferences: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Maximum number of inferences in one part of an export."""
    export_part_bytes: Annotated[int, Field(ge=1, le=1024**3)] = 256 * 1024 * 1024
    """Maximum size of the blobs in one part of an export. It needs twice that on disk."""
    export_blob_bytes: ClassVar[int] = 16 * 1024 * 1024
    """Largest blob that an export copies; a larger one is left out, and counted."""
    dead_letter_keep_seconds: Seconds = 90 * 24 * 3600.0
    """Retention of discarded and redriven dead letters. Open ones are kept."""
    ledger_values_keep_seconds: Seconds = 90 * 24 * 3600.0
    """Retention of values in ledger entries. Keep them longer than your oldest backup."""
    tombstone_seconds: Seconds = 30 * 24 * 3600.0
    """How long erased inferences are remembered. Must exceed the delay of late events."""


# Reads all settings of a start, refuses unknown ones, and reports all errors at once.

_OF_THE_CLIENT: Final = frozenset({f"{PREFIX}URL", f"{PREFIX}KEY"})


GROUPS: tuple[type[SettingsGroup], ...] = (
    ProxySettings,
    IngesterSettings,
    ApiSettings,
    RetentionSettings,
)


def names() -> frozenset[str]:
    """Return every setting's name in the environment."""
    fields = (name for group in GROUPS for name in group.model_fields)
    return frozenset(PREFIX + name.upper() for name in fields)


def list_unknown(environment: Mapping[str, str | None] | None = None) -> list[str]:
    """Return a sentence for each name in the environment that no setting has."""
    known_names = names() | file_names(PREFIX, GROUPS)
    if environment is None:
        environment = {**dotenv_values(".env"), **os.environ}
    return [
        _unknown(name, known_names)
        for name in environment
        if name.startswith(PREFIX) and name not in known_names and not _is_ours(name)
    ]


def _is_ours(name: str) -> bool:
    """Return whether a name belongs to the client, the tests or the command line, not to a
    service."""
    return name in _OF_THE_CLIENT or name.startswith(
        tuple(PREFIX + part for part in ("TEST_", "SERVERS_", "FAILPOINT", "REQUIRE_"))
    )


def _unknown(name: str, known_names: Iterable[str]) -> str:
    # Imported with the first unknown name.
    from rapidfuzz import process  # noqa: PLC0415

    near = [match for match, _, _ in process.extract(name, sorted(known_names), limit=3)]
    are = "is" if len(near) == 1 else "are"
    return f"There is no setting {name}. The nearest {are} {', '.join(near)}."


G = TypeVar("G", bound=SettingsGroup)
Checks = Mapping[type[SettingsGroup], Callable[[Any], object]]
"""More checks of a group: each is called with its settings, and raises WrongSetting."""


def read(group: type[G], checks: Checks | None = None) -> G:
    """Return the settings. Raises WrongSetting, with a line for each unknown name, each wrong
    value, each contradiction, and each error of the checks."""
    errors, settings = list_unknown(), None
    try:
        settings = group()
    except ValidationError as wrong:
        errors += sentences(wrong)
    for checked, check in (checks or {}).items():
        errors += _run_check(check, settings or checked)
    if errors or settings is None:
        raise WrongSetting("\n".join(errors))
    return settings


def _run_check(
    check: Callable[[Any], object], settings: SettingsGroup | type[SettingsGroup]
) -> list[str]:
    """Run a check, and return its errors; it gets only the group if the service's settings are
    wrong."""
    try:
        check(settings() if isinstance(settings, type) else settings)
    except ValidationError:
        return []  # already reported
    except WrongSetting as wrong:
        return [str(wrong)]
    return []
