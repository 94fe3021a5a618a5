"""When an erasure came into force, by the clock of Postgres, by which holds are in force too."""

from alembic import op
from sqlalchemy import text

revision = "0025"
down_revision: str | None = "0024"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"


def upgrade() -> None:
    # those that are there have none: they are compared by the time at which they were asked for
    op.execute(text(f"ALTER TABLE erasure ADD COLUMN in_force_at {_TIME}"))
    op.execute(text("ALTER TABLE erasure ALTER COLUMN in_force_at SET DEFAULT clock_timestamp()"))


def downgrade() -> None:
    op.execute(text("ALTER TABLE erasure DROP COLUMN in_force_at"))
