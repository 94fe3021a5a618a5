"""Reconciliations: what was found where the bucket and the index do not say the same.

Three new tables, empty.
"""

from alembic import op
from sqlalchemy import text

revision = "0013"
down_revision: str | None = "0012"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_TEXT = 'TEXT COLLATE "C"'
_UP = (
    f"CREATE TABLE reconciliation (id UUID NOT NULL, model_id {_TEXT}, cause {_TEXT} NOT NULL,"
    f" repair {_TEXT} NOT NULL, state {_TEXT} NOT NULL,"
    f" requested_at {_TIME} DEFAULT now() NOT NULL, started_at {_TIME}, finished_at {_TIME},"
    " places JSONB DEFAULT '[]'::jsonb NOT NULL, place INTEGER DEFAULT 0 NOT NULL,"
    f" after {_TEXT} DEFAULT '' NOT NULL, orphans_before {_TIME}, because {_TEXT},"
    f" counts JSONB DEFAULT '{{}}'::jsonb NOT NULL, books JSONB, error {_TEXT},"
    " CONSTRAINT reconciliation_pkey PRIMARY KEY (id))",
    "CREATE INDEX reconciliation_requested_at_idx ON reconciliation (requested_at)",
    f"CREATE TABLE reconciliation_finding (reconciliation UUID NOT NULL, kind {_TEXT} NOT NULL,"
    f" storage_key {_TEXT} NOT NULL, model_id {_TEXT}, uid UUID, bytes BIGINT,"
    f" modified_at {_TIME}, state {_TEXT} DEFAULT 'found' NOT NULL, detail {_TEXT},"
    " CONSTRAINT reconciliation_finding_pkey PRIMARY KEY (reconciliation, kind, storage_key),"
    " CONSTRAINT reconciliation_finding_fkey FOREIGN KEY (reconciliation)"
    " REFERENCES reconciliation (id) ON DELETE CASCADE)",
    "CREATE TABLE reconciliation_named (reconciliation UUID NOT NULL,"
    f" storage_key {_TEXT} NOT NULL,"
    " CONSTRAINT reconciliation_named_pkey PRIMARY KEY (reconciliation, storage_key),"
    " CONSTRAINT reconciliation_named_fkey FOREIGN KEY (reconciliation)"
    " REFERENCES reconciliation (id) ON DELETE CASCADE)",
)
_DOWN = ("reconciliation_named", "reconciliation_finding", "reconciliation")


def upgrade() -> None:
    for statement in _UP:
        # a colon begins a parameter
        op.execute(text(statement.replace("::", r"\:\:")))


def downgrade() -> None:
    for table in _DOWN:
        op.execute(text(f"DROP TABLE {table}"))
