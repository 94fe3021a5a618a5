"""What was given up of erasures: inferences that holds kept, and that nobody waits for any more.

Only an addition: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0027"
down_revision: str | None = "0026"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(text("ALTER TABLE erasure ADD COLUMN given_up JSONB"))


def downgrade() -> None:
    op.execute(text("ALTER TABLE erasure DROP COLUMN given_up"))
