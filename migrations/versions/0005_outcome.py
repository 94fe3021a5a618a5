"""What came of each inference, in an index alone: whether it went well, its first prediction's
label and score, and how many predictions it has.

Counts and groups of the four had read whole rows. Built partition by partition beside writers; a
new partition has it from the start. Run again, it goes on where it was cut off.
"""

from alembic import op
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None

_INDEX = "inference_outcome_idx"
_COLUMNS = "(model, uid) INCLUDE (ok, top_label, top_score, prediction_count)"
_UNDEFINED_TABLE = "42P01"
# Partitions that no valid part of the index belongs to, and what an attempt before left there.
_LACKING = text(
    "SELECT leaf.relname, made.indisvalid FROM pg_inherits"
    " JOIN pg_class leaf ON leaf.oid = inhrelid"
    f" LEFT JOIN pg_class mine ON mine.relname = leaf.relname || '_{_INDEX}'"
    " AND mine.relnamespace = leaf.relnamespace"
    " LEFT JOIN pg_index made ON made.indexrelid = mine.oid"
    " WHERE inhparent = 'inference'::regclass AND NOT inhdetachpending AND NOT EXISTS ("
    "SELECT FROM pg_index part JOIN pg_inherits of ON of.inhrelid = part.indexrelid"
    f" WHERE part.indrelid = leaf.oid AND of.inhparent = '{_INDEX}'::regclass)"
    " ORDER BY leaf.relname DESC"
)


def upgrade() -> None:
    op.execute(text(f"CREATE INDEX IF NOT EXISTS {_INDEX} ON ONLY inference {_COLUMNS}"))
    context = op.get_context()
    if context.as_sql:
        return  # which partitions there are, only the database knows
    with context.autocommit_block():
        connection = op.get_bind()
        while lacking := connection.execute(_LACKING).all():
            for partition, valid in lacking:
                _build(connection, partition, valid)


def _build(connection: Connection, partition: str, valid: bool | None) -> None:
    """One partition's part; `valid`: False where an attempt was cut off, None where there is none.

    A partition may have been dropped or merged meanwhile.
    """
    name = f"{partition}_{_INDEX}"
    if valid is False:
        connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {name}"))
    try:
        if not valid:
            # It waits for transactions that are open, while nobody waits for it.
            connection.execute(text("SET lock_timeout = '60s'"))
            connection.execute(text(f"CREATE INDEX CONCURRENTLY {name} ON {partition} {_COLUMNS}"))
        connection.execute(text("SET lock_timeout = '2s'"))
        connection.execute(text(f"ALTER INDEX {_INDEX} ATTACH PARTITION {name}"))
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _UNDEFINED_TABLE:
            raise


def downgrade() -> None:
    op.execute(text(f"DROP INDEX {_INDEX}"))
