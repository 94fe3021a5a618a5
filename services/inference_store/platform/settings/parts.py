"""The groups of settings that several services share: logs, admin port, servers, caps."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, FilePath, SecretStr

from .group import TLS_PARAMETERS, CaFile, Count, Dsn, Seconds, SettingsGroup, pair_faults


class LogSettings(SettingsGroup):
    """How every service logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line; `text`: for reading in a terminal."""


class AdminSettings(SettingsGroup):
    """The admin port of every service."""

    admin_host: str = "127.0.0.1"
    """Address of the admin port (health and metrics)."""
    admin_tls_certificate_file: FilePath | None = None
    """Certificate (PEM, with its chain) of the admin port; set: health and metrics are https."""
    admin_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if a certificate has no key, or a key no certificate."""
        yield from super().contradictions()
        names = ("ADMIN_TLS_CERTIFICATE_FILE", "ADMIN_TLS_KEY_FILE")
        yield from pair_faults(names, self.admin_tls_certificate_file, self.admin_tls_key_file)


_OAUTH = ("kafka_oauth_token_url", "kafka_oauth_client_id", "kafka_oauth_client_secret")
_PASSWORD = ("kafka_sasl_username", "kafka_sasl_password")
_TLS = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_key_password")


class KafkaSettings(SettingsGroup):
    """The topic that inference events arrive on."""

    kafka_bootstrap_servers: str = "localhost:9092"
    """Brokers to begin with, `host:port`, separated by commas."""
    kafka_topic: str = "inference-events"
    """Topic that inference events arrive on."""
    kafka_reports_topic: str = "inference-reports"
    """Topic on which proxies report what they saw, dropped and published."""
    kafka_group: str = "inference-store"
    """Consumer group of the ingesters; offsets that count are in Postgres."""
    kafka_cluster: str = "default"
    """Name of the Kafka cluster in the books; another cluster needs another name."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """`SSL`: encrypted; `SASL_…`: with a login, encrypted or not."""
    kafka_sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    ) = None
    """How to log in: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`."""
    kafka_sasl_username: str = ""
    """User of PLAIN and SCRAM."""
    kafka_sasl_password: SecretStr = SecretStr("")
    """Password of PLAIN and SCRAM."""
    kafka_ca_file: CaFile | None = None
    """Certificates (PEM) of who may sign the brokers' own; unset: the system's."""
    kafka_certificate_file: FilePath | None = None
    """Our own certificate (PEM), where brokers ask for one."""
    kafka_key_file: FilePath | None = None
    """Private key (PEM) of our own certificate."""
    kafka_key_password: SecretStr = SecretStr("")
    """Password of the private key, if it has one."""
    kafka_oauth_token_url: str = ""
    """Where OAUTHBEARER gets its tokens, by client credentials."""
    kafka_oauth_client_id: str = ""
    """Client that asks for the tokens."""
    kafka_oauth_client_secret: SecretStr = SecretStr("")
    """Secret of that client."""
    kafka_oauth_scope: str = ""
    """Scope to ask for, where the token endpoint wants one."""

    def contradictions(self) -> Iterator[str]:
        """Yield the faults of encryption and login, and of certificates without keys."""
        yield from super().contradictions()
        yield from self._protocol()
        yield from self._login(self.kafka_sasl_mechanism)
        names = ("KAFKA_CERTIFICATE_FILE", "KAFKA_KEY_FILE")
        password = self.kafka_key_password.get_secret_value()
        yield from pair_faults(names, self.kafka_certificate_file, self.kafka_key_file, password)

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
    """Where Postgres is: `postgresql://user:password@host:port/database`."""
    postgres_password: SecretStr = SecretStr("")
    """Password of the DSN's user, apart from the DSN."""
    postgres_tls: Literal["disable", "prefer", "require", "verify-full"] = "prefer"
    """`require`: encrypted, whoever answers; `verify-full`: by certificate and name, checked."""
    postgres_ca_file: CaFile | None = None
    """Certificates (PEM) of who may sign Postgres' own; unset: the system's. For `verify-full`."""
    postgres_certificate_file: FilePath | None = None
    """Our own certificate (PEM), where Postgres asks for one."""
    postgres_key_file: FilePath | None = None
    """Private key (PEM) of our own certificate."""
    postgres_pool_size: Count = 10
    """Most connections one process opens."""

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
        names = ("POSTGRES_CERTIFICATE_FILE", "POSTGRES_KEY_FILE")
        yield from pair_faults(names, self.postgres_certificate_file, self.postgres_key_file)
        if self.postgres_certificate_file and self.postgres_tls not in {"require", "verify-full"}:
            yield "$POSTGRES_CERTIFICATE_FILE needs $POSTGRES_TLS=verify-full, or require"
        if self.postgres_ca_file is not None and self.postgres_tls != "verify-full":
            yield "$POSTGRES_CA_FILE is set, but only $POSTGRES_TLS=verify-full checks certificates"


LedgerPrefix = Annotated[str, Field(pattern=r"^([A-Za-z0-9_\-]+/)+$", max_length=256)]


class BlobSettings(SettingsGroup):
    """The object store that holds data, metadata and responses."""

    s3_endpoint: str | None = None
    """URL of the S3 server; unset: AWS."""
    s3_ca_file: CaFile | None = None
    """Certificates (PEM) to trust beside the system's, of who signed the S3 server's own."""
    s3_access_key: SecretStr = SecretStr("")
    """Access key id; unset: the role of `AWS_ROLE_ARN`, or as AWS's own clients."""
    s3_secret_key: SecretStr = SecretStr("")
    """Secret access key."""
    s3_region: str = "us-east-1"
    """Region of the buckets."""
    s3_bucket: str = "inference-store"
    """Default bucket: storage keys without `s3://` are in it."""
    s3_allowed_buckets: str = ""
    """Other buckets that events may name, separated by commas; all else is refused."""
    ledger_prefix: LedgerPrefix = "ledger/"
    """What keys of the ledger begin with, in the default bucket; no event may name such a key."""
    s3_encryption: Literal["none", "SSE-S3", "SSE-KMS"] = "none"
    """Server-side encryption asked for with every object that is written."""
    s3_kms_key_id: str | None = None
    """Key of SSE-KMS."""
    s3_timeout_seconds: Seconds = 10.0
    """How long the object store may say nothing to a request; the api waits for at most 4."""
    s3_public_endpoint: str | None = None
    """URL of the S3 server as clients reach it, for presigned links; unset: `S3_ENDPOINT`."""

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
    """Most connections, and gRPC calls, at once; half of them from one address."""
    connection_idle_seconds: ClassVar[float] = 75.0
    """How long a connection is kept between two requests."""


class CapSettings(SettingsGroup):
    """How much of one inference is indexed; what is over is kept and flagged."""

    max_metadata_bytes: Count = 1024 * 1024
    """Largest metadata blob that is read."""
    max_response_bytes: Count = 4 * 1024 * 1024
    """Largest response blob that is read."""
    max_keys_per_inference: ClassVar[int] = 256
    """Most metadata keys of one inference that are indexed."""
    max_keys_per_model: ClassVar[int] = 10_000
    """Most different metadata keys of one model that are indexed."""
    max_predictions: Count = 10_000
    """Most predictions of one inference that are indexed."""


class CertificateSettings(SettingsGroup):
    """With what certificates are signed, and how long their head is locked."""

    certificate_key: SecretStr | None = None
    """Ed25519 keys (PEM): the first signs certificates, older ones follow. Unset: none are made."""
    certificate_head_lock_days: Annotated[int, Field(ge=0, le=36_500)] = 365
    """How long a bucket with object lock keeps the chain's head from everyone; 0: no lock."""
