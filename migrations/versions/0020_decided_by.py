"""Which rules of which versions of policies an erasure was decided by, for its certificate."""

from alembic import op
from sqlalchemy import text

revision = "0020"
down_revision: str | None = "0019"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    added = "ALTER TABLE erasure ADD COLUMN decided_by JSONB DEFAULT '[]' NOT NULL"
    op.execute(text(added))


def downgrade() -> None:
    op.execute(text("ALTER TABLE erasure DROP COLUMN decided_by"))
