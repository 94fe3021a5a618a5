"""Where topics ended when a reconciliation began, and objects that an erasure of orphans deletes.

Two columns without a default, and a new table, empty.
"""

from alembic import op
from sqlalchemy import text

revision = "0017"
down_revision: str | None = "0016"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_TEXT = 'TEXT COLLATE "C"'


def upgrade() -> None:
    op.execute(
        text(f"ALTER TABLE reconciliation ADD COLUMN noted_at {_TIME}, ADD COLUMN noted JSONB")
    )
    op.execute(
        text(
            f"CREATE TABLE erasing_object (storage_key {_TEXT} NOT NULL, erasure UUID NOT NULL,"
            f" claimed_at {_TIME}, CONSTRAINT erasing_object_pkey PRIMARY KEY (storage_key))"
        )
    )
    op.execute(
        text("CREATE INDEX erasing_object_erasure_idx ON erasing_object (erasure, storage_key)")
    )


def downgrade() -> None:
    op.execute(text("DROP TABLE erasing_object"))
    op.execute(text("ALTER TABLE reconciliation DROP COLUMN noted, DROP COLUMN noted_at"))
