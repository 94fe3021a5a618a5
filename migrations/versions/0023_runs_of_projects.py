"""Runs of retention that are asked for a project.

Only an addition: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0023"
down_revision: str | None = "0022"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text('ALTER TABLE retention_run ADD COLUMN project_id TEXT COLLATE "C"'))


def downgrade() -> None:
    op.execute(text("ALTER TABLE retention_run DROP COLUMN project_id"))
