"""Alembic's entry: `inference-store migrate` hands over an open connection."""

from alembic import context
from sqlalchemy import Connection

from inference_store.store.tables import METADATA


def run_migrations() -> None:
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is None:
        raise SystemExit("Run `inference-store migrate`: it knows the database.")
    context.configure(connection=connection, target_metadata=METADATA)
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
