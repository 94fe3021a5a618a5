"""Alembic's entry: `inference-store migrate` hands over an open connection.

Without one the SQL is only written (offline): the tests read it.
"""

from alembic import context
from sqlalchemy import Connection

from inference_store.index.tables import METADATA


def run_migrations() -> None:
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is not None:
        context.configure(
            connection=connection, target_metadata=METADATA, transaction_per_migration=True
        )
    elif context.is_offline_mode():
        context.configure(dialect_name="postgresql", transaction_per_migration=True)
    else:
        raise SystemExit("Run `inference-store migrate`: it knows the database.")
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
