"""What went with a dropped span is listed, so that what was never in it can still be stored.

A table of its own, and a column with a default: nothing is rewritten. Spans that were dropped
before are not listed, and count as erased whole.
"""

from alembic import op
from sqlalchemy import text

revision = "0022"
down_revision: str | None = "0021"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    "ALTER TABLE erased_span ADD COLUMN listed BOOLEAN DEFAULT false NOT NULL",
    """
    CREATE TABLE erased_batch (
        id BIGINT GENERATED ALWAYS AS IDENTITY,
        model INTEGER NOT NULL,
        first UUID NOT NULL,
        last UUID NOT NULL,
        uids BYTEA NOT NULL,
        erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        CONSTRAINT erased_batch_pkey PRIMARY KEY (id)
    )
    """,
    "CREATE INDEX erased_batch_model_first_idx ON erased_batch (model, first)",
    "CREATE INDEX erased_batch_erased_at_idx ON erased_batch (erased_at)",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    # a span without its list counts as erased whole again
    op.execute(text("DROP TABLE erased_batch"))
    op.execute(text("ALTER TABLE erased_span DROP COLUMN listed"))
