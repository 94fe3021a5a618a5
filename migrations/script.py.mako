"""${message}

Suits the version still running: add, backfill, switch and drop in separate releases.
"""

from alembic import op
from sqlalchemy import text

revision = ${repr(up_revision)}
down_revision: str | None = ${repr(down_revision)}
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text("SET LOCAL lock_timeout = '5s'"))
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
