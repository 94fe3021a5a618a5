"""What holds keep from erasures is found by its objects too: it is asked while writers wait."""

from alembic import op
from sqlalchemy import text

revision = "0024"
down_revision: str | None = "0023"
branch_labels: str | None = None
depends_on: str | None = None
contract = (
    "the table has only what holds keep from erasures, so that its indexes are made within moments,"
    " and what waits meanwhile is what erases"
)

_KEYS = ("data", "response", "metadata", "sidecar")


def upgrade() -> None:
    for key in _KEYS:
        made = f"CREATE INDEX erasure_held_{key}_idx ON erasure_held ({key}_storage_key)"
        op.execute(text(made))


def downgrade() -> None:
    for key in _KEYS:
        op.execute(text(f"DROP INDEX erasure_held_{key}_idx"))
