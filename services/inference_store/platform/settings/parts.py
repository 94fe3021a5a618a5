"""The groups of settings that several services share: logs, admin port, servers, caps."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, FilePath, SecretStr

from .group import TLS_PARAMETERS, CaFile, Count, Dsn, Seconds, SettingsGroup


class LogSettings(SettingsGroup):
    """How every service logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of logged messages."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object per line; `text`: readable in a terminal."""


class AdminSettings(SettingsGroup):
    """The admin port of every service."""

    admin_host: str = "127.0.0.1"
    """Address that the admin port (health and metrics) binds to."""
    admin_tls_certificate_file: FilePath | None = None
    """Certificate chain (PEM) of the admin port. If set, health and metrics use HTTPS."""
    admin_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""


_OAUTH = ("kafka_oauth_token_url", "kafka_oauth_client_id", "kafka_oauth_client_secret")
_PASSWORD = ("kafka_sasl_username", "kafka_sasl_password")
_TLS = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_key_password")


class KafkaSettings(SettingsGroup):
    """The topic that inference events arrive on."""

    kafka_bootstrap_servers: str = "localhost:9092"
    """Comma-separated list of brokers (`host:port`) for the initial connection."""
    kafka_topic: str = "inference-events"
    """Topic of inference events."""
    kafka_reports_topic: str = "inference-reports"
    """Topic to which proxies report what they saw, dropped and published."""
    kafka_truth_topic: str = ""
    """Topic of ground truth, as `ground-truth`. Empty: none is read."""
    kafka_group: str = "inference-store"
    """Consumer group of the ingesters. Authoritative offsets are stored in Postgres."""
    kafka_cluster: str = "default"
    """Name of the Kafka cluster in the accounting. Give each cluster its own name."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """`SSL`: encrypted; `SASL_PLAINTEXT` and `SASL_SSL`: with authentication."""
    kafka_sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    ) = None
    """SASL mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`."""
    kafka_sasl_username: str = ""
    """User name for PLAIN and SCRAM."""
    kafka_sasl_password: SecretStr = SecretStr("")
    """Password for PLAIN and SCRAM."""
    kafka_ca_file: CaFile | None = None
    """CA certificates (PEM) that signed the brokers' certificates. Default: the system's."""
    kafka_certificate_file: FilePath | None = None
    """Client certificate (PEM), if the brokers require one."""
    kafka_key_file: FilePath | None = None
    """Private key (PEM) of the client certificate."""
    kafka_key_password: SecretStr = SecretStr("")
    """Password of the private key, if it has one."""
    kafka_oauth_token_url: str = ""
    """Token endpoint for OAUTHBEARER (client credentials grant)."""
    kafka_oauth_client_id: str = ""
    """Client ID for the token endpoint."""
    kafka_oauth_client_secret: SecretStr = SecretStr("")
    """Client secret for the token endpoint."""
    kafka_oauth_scope: str = ""
    """Scope to request from the token endpoint, if it requires one."""

    def contradictions(self) -> Iterator[str]:
        """Yield the faults of topics, encryption and login."""
        yield from super().contradictions()
        if self.kafka_truth_topic in {self.kafka_topic, self.kafka_reports_topic} - {""}:
            yield f"$KAFKA_TRUTH_TOPIC={self.kafka_truth_topic} is the topic of something else"
        yield from self._protocol()
        yield from self._login(self.kafka_sasl_mechanism)

    def _protocol(self) -> Iterator[str]:
        protocol, mechanism = self.kafka_security_protocol, self.kafka_sasl_mechanism
        protocol_text = f"$KAFKA_SECURITY_PROTOCOL={protocol}"
        if mechanism is not None and "SASL" not in protocol:
            needed = "SASL_SSL or SASL_PLAINTEXT"
            yield f"$KAFKA_SASL_MECHANISM={mechanism} needs {needed}, not {protocol_text}"
        if mechanism is None and "SASL" in protocol:
            yield f"{protocol_text} needs $KAFKA_SASL_MECHANISM"
        if "SSL" not in protocol.removeprefix("SASL_"):
            yield from (
                f"${name} is set, but {protocol_text} does not encrypt"
                for name in self._list_set(_TLS)
            )
        if self.kafka_key_password.get_secret_value() and self.kafka_key_file is None:
            yield "$KAFKA_KEY_PASSWORD is set and $KAFKA_KEY_FILE is not"

    def _login(self, mechanism: str | None) -> Iterator[str]:
        """Yield a sentence for each setting that the mechanism needs and lacks, or does not use."""
        needed: tuple[str, ...] = ()
        if mechanism is not None:
            needed = _OAUTH if mechanism == "OAUTHBEARER" else _PASSWORD
        present = self._list_set((*_OAUTH, *_PASSWORD, "kafka_oauth_scope"))
        for name in (field.upper() for field in needed):
            if name not in present:
                yield f"$KAFKA_SASL_MECHANISM={mechanism} needs ${name}"
        optional = ("KAFKA_OAUTH_SCOPE",) if needed == _OAUTH else ()
        for name in present:
            if name.lower() not in needed and name not in optional:
                yield f"${name} is set, but $KAFKA_SASL_MECHANISM={mechanism or ''} does not use it"
        url = self.kafka_oauth_token_url
        if url and not url.startswith(("https://", "http://")):
            yield "$KAFKA_OAUTH_TOKEN_URL must begin with https:// or http://"

    def _list_set(self, names: tuple[str, ...]) -> list[str]:
        values = {name: getattr(self, name) for name in names}
        return [
            name.upper()
            for name, value in values.items()
            if (value.get_secret_value() if isinstance(value, SecretStr) else value)
        ]


class PostgresSettings(SettingsGroup):
    """The database that holds the index, the books and the policies."""

    postgres_dsn: Dsn = SecretStr("postgresql://localhost:5432/inference_store")
    """Postgres connection URL: `postgresql://user:password@host:port/database`."""
    postgres_password: SecretStr = SecretStr("")
    """Password of the user in the DSN, to keep it out of the DSN."""
    postgres_tls: Literal["disable", "prefer", "require", "verify-full"] = "prefer"
    """`require`: encrypt without verification; `verify-full`: verify certificate and host."""
    postgres_ca_file: CaFile | None = None
    """CA certificates (PEM) for `verify-full`. Default: the system's."""
    postgres_certificate_file: FilePath | None = None
    """Client certificate (PEM), if Postgres requires one."""
    postgres_key_file: FilePath | None = None
    """Private key (PEM) of the client certificate."""
    postgres_pool_size: Count = 10
    """Maximum number of connections per process."""

    @property
    def postgres_tls_mode(self) -> str:
        """The encryption of connections: the DSN's, else POSTGRES_TLS."""
        return self._mode_of_dsn() or self.postgres_tls

    def _mode_of_dsn(self) -> str | None:
        query = parse_qsl(urlsplit(self.postgres_dsn.get_secret_value()).query)
        return next((value for name, value in reversed(query) if name in TLS_PARAMETERS), None)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting that is set twice, or not used."""
        yield from super().contradictions()
        parts = urlsplit(self.postgres_dsn.get_secret_value())
        if self.postgres_password.get_secret_value() and parts.password:
            yield "$POSTGRES_DSN has a password and $POSTGRES_PASSWORD is set: keep one"
        if "postgres_tls" in self.model_fields_set and self._mode_of_dsn():
            yield "$POSTGRES_DSN names sslmode and $POSTGRES_TLS is set: keep one"
        if self.postgres_certificate_file and self.postgres_tls not in {"require", "verify-full"}:
            yield "$POSTGRES_CERTIFICATE_FILE needs $POSTGRES_TLS=verify-full, or require"
        if self.postgres_ca_file is not None and self.postgres_tls != "verify-full":
            yield "$POSTGRES_CA_FILE is set, but only $POSTGRES_TLS=verify-full checks certificates"


LedgerPrefix = Annotated[str, Field(pattern=r"^([A-Za-z0-9_\-]+/)+$", max_length=256)]


class BlobSettings(SettingsGroup):
    """The object store that holds data, metadata and responses."""

    s3_endpoint: str | None = None
    """URL of the S3 server. Default: AWS."""
    s3_ca_file: CaFile | None = None
    """Additional CA certificates (PEM) to trust for the S3 server."""
    s3_access_key: SecretStr = SecretStr("")
    """Access key ID. Default: web identity (`AWS_ROLE_ARN`), then the AWS credential chain."""
    s3_secret_key: SecretStr = SecretStr("")
    """Secret access key."""
    s3_region: str = "us-east-1"
    """Region of the buckets."""
    s3_bucket: str = "inference-store"
    """Default bucket, which storage keys without `s3://` refer to."""
    s3_allowed_buckets: str = ""
    """Comma-separated list of other buckets that events may refer to."""
    ledger_prefix: LedgerPrefix = "ledger/"
    """Key prefix of the ledger in the default bucket. Events cannot refer to keys below it."""
    s3_encryption: Literal["none", "SSE-S3", "SSE-KMS"] = "none"
    """Server-side encryption to request for each object that is written."""
    s3_kms_key_id: str | None = None
    """KMS key for SSE-KMS."""
    s3_timeout_seconds: Seconds = 10.0
    """Maximum time to wait for the object store to respond; the api waits for at most 4."""
    s3_public_endpoint: str | None = None
    """URL at which clients reach S3, for presigned links. Default: `S3_ENDPOINT`."""

    @property
    def buckets(self) -> frozenset[str]:
        """Every bucket that may be read or deleted from."""
        names = (name.strip() for name in self.s3_allowed_buckets.split(","))
        return frozenset(name for name in names if name) | {self.s3_bucket}

    def contradictions(self) -> Iterator[str]:
        """Yield the faults of keys and roles, of encryption and of certificates."""
        yield from super().contradictions()
        key, secret = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        if bool(key) != bool(secret):
            present, missing = ("ACCESS", "SECRET") if key else ("SECRET", "ACCESS")
            yield f"$S3_{present}_KEY is set and $S3_{missing}_KEY is not: set both"
        if self.s3_encryption == "SSE-KMS" and not self.s3_kms_key_id:
            yield "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID"
        if self.s3_encryption != "SSE-KMS" and self.s3_kms_key_id:
            yield "$S3_KMS_KEY_ID is set, but only $S3_ENCRYPTION=SSE-KMS uses it"
        if self.s3_ca_file is not None and (self.s3_endpoint or "https://").startswith("http://"):
            yield "$S3_CA_FILE is set, but $S3_ENDPOINT is not https"


class ConnectionSettings(SettingsGroup):
    """How many connections the api and the proxy take, and how long each may be silent."""

    connections: Count = 4096
    """Maximum number of open connections and gRPC calls; half of them from one address."""
    connection_idle_seconds: ClassVar[float] = 75.0
    """How long a connection is kept between two requests."""


class CapSettings(SettingsGroup):
    """How much of one inference is indexed; what is over is kept and flagged."""

    max_metadata_bytes: Count = 1024 * 1024
    """Maximum size of a metadata blob that is read."""
    max_response_bytes: Count = 4 * 1024 * 1024
    """Maximum size of a response blob that is read."""
    max_keys_per_inference: ClassVar[int] = 256
    """Most metadata keys of one inference that are indexed."""
    max_keys_per_model: ClassVar[int] = 10_000
    """Most different metadata keys of one model that are indexed."""
    max_predictions: Count = 10_000
    """Maximum number of predictions indexed per inference."""
    ground_truth_wait_days: Annotated[int, Field(ge=0, le=366)] = 14
    """Days for which ground truth waits for an inference that has not come yet; 0: none waits."""


class CertificateSettings(SettingsGroup):
    """With what certificates are signed, and how long their head is locked."""

    certificate_key: SecretStr | None = None
    """Ed25519 keys (PEM): the first one signs, older ones follow. Default: no certificates."""
    certificate_head_lock_days: Annotated[int, Field(ge=0, le=36_500)] = 365
    """Object lock on the head of the certificate chain, if the bucket has object lock; 0: none."""
