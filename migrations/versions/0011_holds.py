"""Legal holds, their history, and what erasures leave because of them.

New tables, empty, and a column of the marks that the version before does not name.
"""

from alembic import op
from sqlalchemy import text

revision = "0011"
down_revision: str | None = "0010"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_TEXT = 'TEXT COLLATE "C"'
_UP = (
    f"CREATE TABLE hold (id UUID NOT NULL, name {_TEXT} NOT NULL, reason {_TEXT} NOT NULL,"
    f" model INTEGER, filter {_TEXT} NOT NULL, inference_ids JSONB, until {_TIME},"
    f" placed_by {_TEXT} NOT NULL, placed_at {_TIME} NOT NULL, in_force_at {_TIME} NOT NULL,"
    f" released_by {_TEXT}, released_at {_TIME}, release_reason {_TEXT},"
    " revision INTEGER DEFAULT 1 NOT NULL, taken_up INTEGER DEFAULT 0 NOT NULL,"
    " CONSTRAINT hold_pkey PRIMARY KEY (id))",
    "CREATE INDEX hold_placed_at_idx ON hold (placed_at)",
    f"CREATE TABLE hold_change (hold UUID NOT NULL, revision INTEGER NOT NULL,"
    f" change {_TEXT} NOT NULL, at {_TIME} NOT NULL, actor {_TEXT} NOT NULL,"
    " document JSONB NOT NULL, CONSTRAINT hold_change_pkey PRIMARY KEY (hold, revision))",
    "CREATE TABLE erasure_held (erasure UUID NOT NULL, model INTEGER NOT NULL, uid UUID NOT NULL,"
    f" scope {_TEXT} NOT NULL, hold UUID NOT NULL, hold_revision INTEGER NOT NULL,"
    f" data_storage_key {_TEXT},"
    f" response_storage_key {_TEXT}, metadata_storage_key {_TEXT}, sidecar_storage_key {_TEXT},"
    f" claimed_at {_TIME}, CONSTRAINT erasure_held_pkey PRIMARY KEY (erasure, model, uid, scope))",
    "CREATE INDEX erasure_held_hold_idx ON erasure_held (hold, hold_revision)",
    f"ALTER TABLE erasing ADD COLUMN claimed_at {_TIME}",
)
_DOWN = (
    "ALTER TABLE erasing DROP COLUMN claimed_at",
    "DROP TABLE erasure_held",
    "DROP TABLE hold_change",
    "DROP TABLE hold",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
