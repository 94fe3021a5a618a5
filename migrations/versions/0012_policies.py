"""Policies of models, projects and all, in versions; the responses' own age; sizes of objects.

The policies of the version before become the first versions of their models' policies, in force
since they were set. Their table stays for services of that version, which still read it.
"""

from alembic import op
from sqlalchemy import text

revision = "0012"
down_revision: str | None = "0011"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_NOW = f"{_TIME} DEFAULT now() NOT NULL"
_OF = 'level TEXT COLLATE "C" NOT NULL, subject TEXT COLLATE "C" NOT NULL'
_TEXT = 'TEXT COLLATE "C"'
_UP = (
    f"CREATE TABLE policy ({_OF}, revision INTEGER NOT NULL,"
    " CONSTRAINT policy_pkey PRIMARY KEY (level, subject))",
    f"CREATE TABLE policy_version ({_OF}, revision INTEGER NOT NULL, document {_TEXT},"
    f" set_by {_TEXT} NOT NULL, set_at {_NOW}, effective_at {_NOW}, revoked_at {_TIME},"
    f" revoked_by {_TEXT}, reason {_TEXT},"
    " CONSTRAINT policy_version_pkey PRIMARY KEY (level, subject, revision))",
    f"CREATE TABLE policy_sweep (model INTEGER NOT NULL, rule INTEGER NOT NULL,"
    f" scope {_TEXT} NOT NULL, chain {_TEXT} NOT NULL, until {_TIME} NOT NULL,"
    f" whole_at {_TIME} NOT NULL,"
    " CONSTRAINT policy_sweep_pkey PRIMARY KEY (model, rule, scope))",
    f"CREATE TABLE policy_preview (token UUID NOT NULL, {_OF}, revision INTEGER NOT NULL,"
    f" policy {_TEXT} NOT NULL, made_at {_NOW},"
    " CONSTRAINT policy_preview_pkey PRIMARY KEY (token))",
    "ALTER TABLE retention_run ADD COLUMN responses_deleted BIGINT DEFAULT 0 NOT NULL",
    f"ALTER TABLE inference ADD COLUMN response_deleted_at {_TIME}",
    "ALTER TABLE inference ADD COLUMN stored_bytes BIGINT",
    "INSERT INTO policy_version (level, subject, revision, document, set_by, set_at, effective_at)"
    " SELECT 'model', r.model_id, p.revision, jsonb_build_object('rules', p.rules)::text,"
    " 'an earlier version', p.updated_at, p.updated_at"
    " FROM retention_policy p JOIN registration r ON r.model = p.model",
    "INSERT INTO policy (level, subject, revision)"
    " SELECT level, subject, revision FROM policy_version",
)
_DOWN = (
    "ALTER TABLE inference DROP COLUMN stored_bytes",
    "ALTER TABLE inference DROP COLUMN response_deleted_at",
    "ALTER TABLE retention_run DROP COLUMN responses_deleted",
    "DROP TABLE policy_preview",
    "DROP TABLE policy_sweep",
    "DROP TABLE policy_version",
    "DROP TABLE policy",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
