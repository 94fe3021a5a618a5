"""How far a database has come in the ledger of the bucket: its head, and what was meant to follow.

Two new tables; a database that is here already begins at number 0, as a new one does. What was
set before (policies) stays, and is in no entry: backups made from here on have it.
"""

from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision: str | None = "0008"
branch_labels: str | None = None
depends_on: str | None = None

_UP = (
    "CREATE TABLE ledger_head (id INTEGER NOT NULL, number BIGINT NOT NULL,"
    ' hash TEXT COLLATE "C" NOT NULL, CONSTRAINT ledger_head_pkey PRIMARY KEY (id))',
    "INSERT INTO ledger_head (id, number, hash) VALUES (1, 0, '')",
    'CREATE TABLE ledger_intent (number BIGINT NOT NULL, hash TEXT COLLATE "C" NOT NULL,'
    " intended_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,"
    " CONSTRAINT ledger_intent_pkey PRIMARY KEY (number, hash))",
)
_DOWN = ("DROP TABLE ledger_intent", "DROP TABLE ledger_head")


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
