"""The audit becomes append-only: a chain of hashes over its entries, and triggers that keep both.

Entries have their place in the chain in a table of its own; the retention service links what was
committed. Nothing is written over in what was there.
"""

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision: str | None = "0007"
branch_labels: str | None = None
depends_on: str | None = None

contract = (
    "the trigger fires for entries that are in the chain alone: what the version before writes"
    " is not until this version's retention service leads, and that of before prunes no more"
)

_TIME = "TIMESTAMP WITH TIME ZONE"
_FIXED = ("id", "number", "at", "actor", "client", "action", "model", "model_id")
_SAME = ", ".join(f"NEW.{name}" for name in _FIXED), ", ".join(f"OLD.{name}" for name in _FIXED)
_REFUSED = (
    " RAISE EXCEPTION 'the audit is append-only: % of % refused', lower(TG_OP), TG_TABLE_NAME"
    " USING ERRCODE = 'restrict_violation';"
)
_PRUNING = (
    " IF TG_OP = 'DELETE' AND current_setting('inference_store.audit', true) = 'prune' THEN"
    " RETURN OLD; END IF;"
)
_UP = (
    "ALTER TABLE audit ADD COLUMN number BIGINT",
    "ALTER TABLE audit ADD COLUMN taken_by BIGINT",
    "CREATE INDEX audit_unchained_idx ON audit (id) WHERE number IS NULL",
    "CREATE TABLE audit_link (number BIGINT NOT NULL, entry BIGINT NOT NULL, salt BYTEA,"
    " values_hash BYTEA NOT NULL, hash BYTEA NOT NULL,"
    " CONSTRAINT audit_link_pkey PRIMARY KEY (number))",
    "CREATE UNIQUE INDEX audit_link_entry_key ON audit_link (entry)",
    "CREATE TABLE audit_head (id INTEGER NOT NULL, number BIGINT DEFAULT 0 NOT NULL,"
    " hash BYTEA NOT NULL, cut BIGINT DEFAULT 0 NOT NULL,"
    " CONSTRAINT audit_head_pkey PRIMARY KEY (id))",
    "INSERT INTO audit_head (id, hash) VALUES (1, decode(repeat('00', 32), 'hex'))",
    "CREATE TABLE audit_checkpoint (id BIGINT GENERATED ALWAYS AS IDENTITY,"
    f' at {_TIME} DEFAULT now() NOT NULL, reason TEXT COLLATE "C" NOT NULL,'
    " number BIGINT NOT NULL, hash BYTEA NOT NULL, signed JSONB,"
    " CONSTRAINT audit_checkpoint_pkey PRIMARY KEY (id))",
    "CREATE INDEX audit_checkpoint_number_idx ON audit_checkpoint (number)",
    "CREATE FUNCTION keep_audit() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN"
    f"{_PRUNING}"
    " IF TG_OP = 'UPDATE' AND OLD.taken_by IS NULL AND NEW.taken_by IS NOT NULL"
    " AND NEW.uid IS NULL AND NEW.detail = '{}'::jsonb"
    f" AND ({_SAME[0]}) IS NOT DISTINCT FROM ({_SAME[1]}) THEN RETURN NEW; END IF;"
    f"{_REFUSED} END $body$",
    "CREATE FUNCTION keep_audit_link() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN"
    f"{_PRUNING}"
    " IF TG_OP = 'UPDATE' AND NEW.salt IS NULL AND (NEW.number, NEW.entry, NEW.values_hash,"
    " NEW.hash) = (OLD.number, OLD.entry, OLD.values_hash, OLD.hash) THEN RETURN NEW; END IF;"
    f"{_REFUSED} END $body$",
    "CREATE FUNCTION keep_audit_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN"
    f"{_PRUNING}{_REFUSED} END $body$",
    "CREATE TRIGGER keep_audit BEFORE UPDATE OR DELETE ON audit FOR EACH ROW"
    " WHEN (OLD.number IS NOT NULL) EXECUTE FUNCTION keep_audit()",
    "CREATE TRIGGER keep_audit_link BEFORE UPDATE OR DELETE ON audit_link FOR EACH ROW"
    " EXECUTE FUNCTION keep_audit_link()",
    "CREATE TRIGGER keep_audit_checkpoint BEFORE UPDATE OR DELETE ON audit_checkpoint"
    " FOR EACH ROW EXECUTE FUNCTION keep_audit_checkpoint()",
)
_DOWN = (
    "DROP FUNCTION keep_audit() CASCADE",
    "DROP TABLE audit_checkpoint",
    "DROP TABLE audit_head",
    "DROP TABLE audit_link",
    "DROP FUNCTION keep_audit_link(), keep_audit_checkpoint()",
    "DROP INDEX audit_unchained_idx",
    "ALTER TABLE audit DROP COLUMN number, DROP COLUMN taken_by",
)


def upgrade() -> None:
    op.execute(text("SET LOCAL lock_timeout = '5s'"))
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
