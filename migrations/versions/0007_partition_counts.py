"""Counts of partitions that are no longer written, and the function that outdates them.

Two new tables, empty: the retention service fills them. Whatever writes to a partition that has
been counted, the services of the version before too, outdates its counts by a trigger, which
the partition is given when it is counted.
"""

from alembic import op
from sqlalchemy import text

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_UP = (
    "CREATE TABLE partition_count (id BIGINT GENERATED ALWAYS AS IDENTITY,"
    ' span TEXT COLLATE "C" NOT NULL, model INTEGER NOT NULL, lo UUID NOT NULL, hi UUID NOT NULL,'
    f" begun_at {_TIME} DEFAULT now() NOT NULL, counted_at {_TIME}, inferences BIGINT,"
    " unlabelled BIGINT, labels JSONB, keys JSONB,"
    " CONSTRAINT partition_count_pkey PRIMARY KEY (id),"
    " CONSTRAINT partition_count_span_fkey FOREIGN KEY (span) REFERENCES partition_span (name)"
    " ON DELETE CASCADE)",
    "CREATE INDEX partition_count_model_lo_idx ON partition_count (model, lo)",
    "CREATE INDEX partition_count_span_model_idx ON partition_count (span, model)",
    f"CREATE TABLE outdated_count (partition_count BIGINT NOT NULL, at {_TIME}"
    " DEFAULT now() NOT NULL)",
    "CREATE INDEX outdated_count_partition_count_idx ON outdated_count (partition_count)",
    # One note a transaction, which remembers that it made it: until it ends no count can be begun.
    "CREATE FUNCTION outdate_counts() RETURNS trigger LANGUAGE plpgsql AS $body$"
    " DECLARE written integer; place text;"
    " BEGIN"
    " IF TG_OP = 'DELETE' THEN written := OLD.model; ELSE written := NEW.model; END IF;"
    " place := TG_ARGV[0] || ' ' || written;"
    " IF current_setting('inference_store.outdated', true) = place THEN RETURN NULL; END IF;"
    " INSERT INTO outdated_count (partition_count)"
    " SELECT counted.id FROM partition_count counted"
    " WHERE counted.span = TG_ARGV[0] AND counted.model = written AND NOT EXISTS ("
    " SELECT FROM outdated_count already WHERE already.partition_count = counted.id);"
    " PERFORM set_config('inference_store.outdated', place, true);"
    " RETURN NULL;"
    " END $body$",
)
_DOWN = (
    "DROP FUNCTION outdate_counts() CASCADE",
    "DROP TABLE outdated_count",
    "DROP TABLE partition_count",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement.replace(":=", r"\:=")))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
