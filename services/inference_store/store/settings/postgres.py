"""Postgres."""

from typing import Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr, model_validator

from .group import Count, Group
from .tls_files import CaFile


class PostgresSettings(Group):
    """The database that holds the index, the books and the policies."""

    postgres_dsn: SecretStr = SecretStr("postgresql://localhost:5432/inference_store")
    """Where Postgres is: `postgresql://user:password@host:port/database`."""
    postgres_password: SecretStr = SecretStr("")
    """Password of the DSN's user, apart from the DSN."""
    postgres_tls: Literal["disable", "prefer", "require", "verify-full"] = "prefer"
    """`require`: encrypted, whoever answers; `verify-full`: by certificate and name, checked."""
    postgres_ca_file: CaFile | None = None
    """Certificates (PEM) of who may sign Postgres' own; unset: the system's. For `verify-full`."""
    postgres_pool_size: Count = 10
    """Most connections one process opens."""
    partition_inferences: Count = 2_000_000
    """Inferences that one partition should hold; spans of new ones adapt to it."""

    @model_validator(mode="after")
    def _postgres_fits(self) -> Self:
        parts = urlsplit(self.postgres_dsn.get_secret_value())
        if self.postgres_password.get_secret_value() and parts.password:
            raise ValueError("POSTGRES_DSN has a password and POSTGRES_PASSWORD is set: keep one")
        if (
            "postgres_tls" in self.model_fields_set
            and {"sslmode", "ssl"} & parse_qs(parts.query).keys()
        ):
            raise ValueError("POSTGRES_DSN names sslmode and POSTGRES_TLS is set: keep one")
        if self.postgres_ca_file is not None and self.postgres_tls != "verify-full":
            raise ValueError(
                "POSTGRES_CA_FILE is set, but only POSTGRES_TLS=verify-full checks certificates"
            )
        return self
