"""What producers report of themselves, and the sums of those that were heard long ago.

Two new tables: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None

_COUNT = "BIGINT DEFAULT 0 NOT NULL"
_TIME = "TIMESTAMP WITH TIME ZONE"
_UP = (
    'CREATE TABLE producer_report (producer TEXT COLLATE "C" NOT NULL,'
    ' reporter TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL,'
    f" booted_at {_TIME} NOT NULL, reported_at {_TIME} NOT NULL,"
    f" seen {_COUNT}, sampled_out {_COUNT}, dropped JSONB DEFAULT '{{}}'::jsonb NOT NULL,"
    f" queued {_COUNT}, spooled {_COUNT}, published {_COUNT}, events {_COUNT},"
    f" highest_sequence {_COUNT}, final BOOLEAN DEFAULT false NOT NULL,"
    ' silent BOOLEAN DEFAULT false NOT NULL, cluster TEXT COLLATE "C" NOT NULL,'
    ' topic TEXT COLLATE "C" NOT NULL, partition INTEGER NOT NULL, "offset" BIGINT NOT NULL,'
    f" heard_at {_TIME} DEFAULT now() NOT NULL,"
    " CONSTRAINT producer_report_pkey PRIMARY KEY (producer, reporter))",
    f"CREATE TABLE former_producers (id INTEGER NOT NULL, heard_until {_TIME} NOT NULL,"
    f" producers {_COUNT}, seen {_COUNT}, sampled_out {_COUNT},"
    f" dropped JSONB DEFAULT '{{}}'::jsonb NOT NULL, published {_COUNT}, events {_COUNT},"
    f" unsettled {_COUNT}, given {_COUNT}, arrived {_COUNT}, holes_dropped {_COUNT},"
    f" unknown_tail {_COUNT}, unexplained {_COUNT},"
    " CONSTRAINT former_producers_pkey PRIMARY KEY (id))",
)
_DOWN = ("DROP TABLE former_producers", "DROP TABLE producer_report")


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
