"""A Postgres of its own with a data set of the benchmark."""

from dataclasses import dataclass

from tests.servers.postgres import PostgresServer


@dataclass(frozen=True)
class Loaded:
    """`dsn` names the database of the data set."""

    server: PostgresServer
    dsn: str
