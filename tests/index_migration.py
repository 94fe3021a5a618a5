"""An example of a migration that builds an index on a large table while others write to it.

The index is built partition by partition; a new partition has it from the start. If the migration
is cut off and runs again, it continues where it stopped.
"""

from alembic import op
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_INDEX = "inference_size_idx"
_COLUMNS = "(model, uid) INCLUDE (width, height)"
_UNDEFINED_TABLE = "42P01"
# Partitions without a valid part of the index, and what an earlier attempt left there.
_MISSING = text(
    "SELECT leaf.relname, part.indisvalid FROM pg_inherits"
    " JOIN pg_class leaf ON leaf.oid = inhrelid"
    f" LEFT JOIN pg_class built ON built.relname = leaf.relname || '_{_INDEX}'"
    " AND built.relnamespace = leaf.relnamespace"
    " LEFT JOIN pg_index part ON part.indexrelid = built.oid"
    " WHERE inhparent = 'inference'::regclass AND NOT inhdetachpending AND NOT EXISTS ("
    "SELECT FROM pg_index attached JOIN pg_inherits of ON of.inhrelid = attached.indexrelid"
    f" WHERE attached.indrelid = leaf.oid AND of.inhparent = '{_INDEX}'::regclass)"
    " ORDER BY leaf.relname DESC"
)


def upgrade() -> None:
    op.execute(text(f"CREATE INDEX IF NOT EXISTS {_INDEX} ON ONLY inference {_COLUMNS}"))
    context = op.get_context()
    if context.as_sql:
        return  # only the database knows which partitions there are
    with context.autocommit_block():
        connection = op.get_bind()
        while missing := connection.execute(_MISSING).all():
            for partition, is_valid in missing:
                _build(connection, partition, is_valid)


def _build(connection: Connection, partition: str, is_valid: bool | None) -> None:
    """Build and attach one partition's part.

    `is_valid` is False if an earlier attempt was cut off, None if there was none. The partition may
    have been dropped or merged in the meantime.
    """
    name = f"{partition}_{_INDEX}"
    if is_valid is False:
        connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
    try:
        if not is_valid:
            # It waits for open transactions, and nobody waits for it.
            connection.execute(text("SET lock_timeout = '60s'"))
            connection.execute(text(f"CREATE INDEX CONCURRENTLY {name} ON {partition} {_COLUMNS}"))
        connection.execute(text("SET lock_timeout = '2s'"))
        connection.execute(text(f"ALTER INDEX {_INDEX} ATTACH PARTITION {name}"))
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _UNDEFINED_TABLE:
            raise
