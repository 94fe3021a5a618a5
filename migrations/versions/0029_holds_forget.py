"""Revisions of holds that mention a subject which was erased lose their values once a hold is over.

Only an addition: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0029"
down_revision: str | None = "0028"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    column = "forget_when_over BOOLEAN NOT NULL DEFAULT false"
    op.execute(text(f"ALTER TABLE hold_change ADD COLUMN {column}"))
    here = "hold_change (hold) WHERE forget_when_over"
    op.execute(text(f"CREATE INDEX hold_change_forget_idx ON {here}"))


def downgrade() -> None:
    op.execute(text("ALTER TABLE hold_change DROP COLUMN forget_when_over"))
