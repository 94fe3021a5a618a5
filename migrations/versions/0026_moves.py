"""Models that move: which project's policy decides for a while longer.

Only an addition: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0026"
down_revision: str | None = "0025"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text('ALTER TABLE registration ADD COLUMN left_project_id TEXT COLLATE "C"'))
    op.execute(text("ALTER TABLE registration ADD COLUMN moves_at TIMESTAMP WITH TIME ZONE"))


def downgrade() -> None:
    op.execute(text("ALTER TABLE registration DROP COLUMN moves_at"))
    op.execute(text("ALTER TABLE registration DROP COLUMN left_project_id"))
