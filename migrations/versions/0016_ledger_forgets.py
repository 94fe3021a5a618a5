"""How far the ledger has forgotten what its entries said.

A column with a default: nothing is rewritten.
"""

from alembic import op
from sqlalchemy import text

revision = "0016"
down_revision: str | None = "0015"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text("ALTER TABLE ledger_head ADD COLUMN forgotten BIGINT DEFAULT 0 NOT NULL"))


def downgrade() -> None:
    op.execute(text("ALTER TABLE ledger_head DROP COLUMN forgotten"))
