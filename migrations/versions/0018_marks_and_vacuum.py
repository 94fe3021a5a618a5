"""Room beside each mark, for it is written again when it is claimed; and vacuum comes to marks
soon, for all of them are dead before long.
"""

from alembic import op
from sqlalchemy import text

revision = "0018"
down_revision: str | None = "0017"
branch_labels: str | None = None
depends_on: str | None = None

_SETTINGS = {
    "fillfactor": "45",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_threshold": "10000",
}


def upgrade() -> None:
    told = ", ".join(f"{name} = {value}" for name, value in _SETTINGS.items())
    op.execute(text(f"ALTER TABLE erasing SET ({told})"))


def downgrade() -> None:
    op.execute(text(f"ALTER TABLE erasing RESET ({', '.join(_SETTINGS)})"))
