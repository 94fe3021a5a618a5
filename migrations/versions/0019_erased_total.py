"""How many stored inferences were ever erased: known also when the erasures are no longer kept."""

from alembic import op
from sqlalchemy import text

revision = "0019"
down_revision: str | None = "0018"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    "CREATE TABLE erased_total (id INTEGER NOT NULL, inferences BIGINT DEFAULT 0 NOT NULL,"
    " CONSTRAINT erased_total_pkey PRIMARY KEY (id))",
    "INSERT INTO erased_total (id, inferences) SELECT 1, coalesce(sum(inferences), 0) FROM erasure"
    " WHERE scope = 'inference' AND cause IN ('policy', 'request')",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    op.execute(text("DROP TABLE erased_total"))
