"""${message}

Only adds: the version before this one goes on working. docs/how-to/extend.md says which forms do, and how
what is no longer used is taken away later.
"""

from alembic import op
from sqlalchemy import text

revision = ${repr(up_revision)}
down_revision: str | None = ${repr(down_revision)}
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
