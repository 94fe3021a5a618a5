"""The first schema: one SQL file for each subject, in `0001_initial/`.

The partitioned tables are created empty: their time partitions are created as events arrive.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

# In this order: a foreign key names a table that exists.
_FILES = (
    "text_folding",
    "registrations",
    "inferences",
    "counts",
    "accounting",
    "access",
    "audit",
    "policies",
    "holds",
    "erasures",
    "certificates",
    "ledger",
    "reconciliations",
    "views",
    "exports",
)


def upgrade() -> None:
    folder = Path(__file__).with_suffix("")
    for name in _FILES:
        for statement in (folder / f"{name}.sql").read_text().split(";\n\n"):
            # a colon would begin a parameter
            op.execute(text(statement.rstrip(";\n").replace(":", r"\:")))
