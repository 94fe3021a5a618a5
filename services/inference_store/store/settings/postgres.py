"""Postgres."""

from pydantic import SecretStr

from .group import Count, Group


class PostgresSettings(Group):
    """The database that holds the index, the books and the policies."""

    postgres_dsn: SecretStr = SecretStr("postgresql://localhost:5432/inference_store")
    """Where Postgres is: `postgresql://user:password@host:port/database`."""
    postgres_pool_size: Count = 10
    """Most connections one process opens."""
    partition_inferences: Count = 5_000_000
    """Inferences that one partition should hold; spans of new ones adapt to it."""
