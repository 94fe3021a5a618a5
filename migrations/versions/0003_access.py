"""Access: API keys, and an audit that says from where, and of which model by its name.

Only additions: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    'CREATE TABLE api_key (id TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL,'
    " hash BYTEA NOT NULL, old_hash BYTEA, old_works_until TIMESTAMP WITH TIME ZONE,"
    " grants JSONB NOT NULL, created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,"
    ' created_by TEXT COLLATE "C" NOT NULL, expires_at TIMESTAMP WITH TIME ZONE,'
    " rotated_at TIMESTAMP WITH TIME ZONE, revoked_at TIMESTAMP WITH TIME ZONE,"
    " last_used_at TIMESTAMP WITH TIME ZONE, CONSTRAINT api_key_pkey PRIMARY KEY (id))",
    'ALTER TABLE audit ADD COLUMN model_id TEXT COLLATE "C"',
    'ALTER TABLE audit ADD COLUMN client TEXT COLLATE "C"',
    "CREATE INDEX audit_at_idx ON audit (at)",
    "CREATE INDEX audit_actor_id_idx ON audit (actor, id)",
    "CREATE INDEX audit_model_id_id_idx ON audit (model_id, id)",
    "CREATE INDEX audit_uid_idx ON audit (uid)",
)
_DOWN = (
    "DROP INDEX audit_at_idx, audit_actor_id_idx, audit_model_id_id_idx, audit_uid_idx",
    "ALTER TABLE audit DROP COLUMN model_id, DROP COLUMN client",
    "DROP TABLE api_key",
)


def upgrade() -> None:
    op.execute(text("SET LOCAL lock_timeout = '5s'"))
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
