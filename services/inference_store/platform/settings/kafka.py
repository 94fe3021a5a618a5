"""Kafka."""

from collections.abc import Iterator
from typing import Literal

from pydantic import FilePath, SecretStr

from .group import SettingsGroup
from .tls_files import CaFile, pair_faults

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
        """Return the names in the environment of the fields that have a value."""
        values = {name: getattr(self, name) for name in names}
        return [
            name.upper()
            for name, value in values.items()
            if (value.get_secret_value() if isinstance(value, SecretStr) else value)
        ]
