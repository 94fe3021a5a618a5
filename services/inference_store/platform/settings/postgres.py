"""Postgres."""

from collections.abc import Iterator
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import FilePath, SecretStr

from .dsn import TLS_PARAMETERS, Dsn
from .group import Count, SettingsGroup
from .tls_files import CaFile, pair_faults


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
