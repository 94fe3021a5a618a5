"""Where an inference's sidecar is, in its row and in the marks of erasure.

A column without a default: nothing is rewritten, the partitions follow their parent, and the
version still running goes on writing without it.
"""

from alembic import op
from sqlalchemy import text

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text("SET LOCAL lock_timeout = '5s'"))
    for table in ("inference", "erasing"):
        column = 'sidecar_storage_key TEXT COLLATE "C"'
        op.execute(text(f"ALTER TABLE {table} ADD COLUMN {column}"))


def downgrade() -> None:
    for table in ("inference", "erasing"):
        op.execute(text(f"ALTER TABLE {table} DROP COLUMN sidecar_storage_key"))
