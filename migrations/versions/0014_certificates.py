"""Certificates of erasures, and the lists of what they erased: two new tables, empty.

An erasure names its newest certificate.
"""

from alembic import op
from sqlalchemy import text

revision = "0014"
down_revision: str | None = "0013"
branch_labels: str | None = None
depends_on: str | None = None

_TIME = "TIMESTAMP WITH TIME ZONE"
_UP = (
    "CREATE TABLE certificate (number BIGINT NOT NULL,"
    ' kind TEXT COLLATE "C" NOT NULL, erasure UUID, model INTEGER,'
    f' issued_at {_TIME} NOT NULL, signed TEXT COLLATE "C" NOT NULL, hash BYTEA NOT NULL,'
    " CONSTRAINT certificate_pkey PRIMARY KEY (number))",
    "CREATE INDEX certificate_erasure_idx ON certificate (erasure)",
    "CREATE INDEX certificate_model_number_idx ON certificate (model, number)",
    "CREATE TABLE erased_leaves (id BIGINT GENERATED ALWAYS AS IDENTITY,"
    ' erasure UUID NOT NULL, certificate BIGINT, hashed_by TEXT COLLATE "C" NOT NULL,'
    " inferences BIGINT NOT NULL, objects BIGINT NOT NULL,"
    f' oldest {_TIME}, newest {_TIME}, span TEXT COLLATE "C",'
    f" recorded_at {_TIME} DEFAULT now() NOT NULL, leaves BYTEA NOT NULL,"
    " CONSTRAINT erased_leaves_pkey PRIMARY KEY (id))",
    # Hashes do not get smaller: compressing them would be tried in vain.
    "ALTER TABLE erased_leaves ALTER COLUMN leaves SET STORAGE EXTERNAL",
    "CREATE INDEX erased_leaves_erasure_idx ON erased_leaves (erasure, id)",
    "CREATE INDEX erased_leaves_certificate_idx ON erased_leaves (certificate, id)",
    "ALTER TABLE erasure ADD COLUMN certificate BIGINT",
)
_DOWN = (
    "ALTER TABLE erasure DROP COLUMN certificate",
    "DROP TABLE erased_leaves",
    "DROP TABLE certificate",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
