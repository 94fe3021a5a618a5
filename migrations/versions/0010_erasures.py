"""Erasures that are asked for by a filter, ids or a subject, over one model or several.

Columns of `erasure` for what was asked, how far it is and what went; one row an erasure and model;
what S3 would not let go. `erasure.model` may be NULL: several models.
"""

from alembic import op
from sqlalchemy import text

revision = "0010"
down_revision: str | None = "0009"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_COUNT = "BIGINT DEFAULT 0 NOT NULL"
_COLUMNS = (
    "asked JSONB",
    'requested_by TEXT COLLATE "C"',
    f"begun_at {_TIME}",
    f"deleting_since {_TIME}",
    f"retry_at {_TIME}",
    f"marked {_COUNT}",
    f"held {_COUNT}",
    f"versions {_COUNT}",
    f"bytes {_COUNT}",
    "table_rows JSONB DEFAULT '{}' NOT NULL",
    f"oldest {_TIME}",
    f"newest {_TIME}",
)
_UP = (
    "ALTER TABLE erasure ALTER COLUMN model DROP NOT NULL",
    *(f"ALTER TABLE erasure ADD COLUMN {column}" for column in _COLUMNS),
    "CREATE TABLE erasure_model (erasure UUID NOT NULL, model INTEGER NOT NULL,"
    f" marked {_COUNT}, erased {_COUNT}, marked_to UUID, marked_at {_TIME},"
    " CONSTRAINT erasure_model_pkey PRIMARY KEY (erasure, model))",
    "CREATE INDEX erasure_model_model_idx ON erasure_model (model, erasure)",
    'CREATE TABLE erasure_obstacle (erasure UUID NOT NULL, storage_key TEXT COLLATE "C" NOT NULL,'
    f' code TEXT COLLATE "C" NOT NULL, message TEXT COLLATE "C" NOT NULL, retry_at {_TIME},'
    f" seen_at {_TIME} DEFAULT now() NOT NULL,"
    " CONSTRAINT erasure_obstacle_pkey PRIMARY KEY (erasure, storage_key))",
)
_DOWN = (
    "DROP TABLE erasure_obstacle",
    "DROP TABLE erasure_model",
    "DELETE FROM erasure WHERE model IS NULL",
    *(f"ALTER TABLE erasure DROP COLUMN {column.split()[0]}" for column in _COLUMNS),
    "ALTER TABLE erasure ALTER COLUMN model SET NOT NULL",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
