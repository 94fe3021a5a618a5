"""The first schema: functions, the tables as `index.tables` defines them, then rows and triggers.

Until the first release: from then on this migration has its statements written out, so that later
ones find what it made. The partitioned tables are created empty: their time partitions are created
as events arrive.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text
from sqlalchemy.schema import CreateIndex, CreateTable

from inference_store.index.tables import METADATA

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    _run("text_folding")
    for table in METADATA.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))
    _run("rows_and_triggers")


def _run(name: str) -> None:
    file = Path(__file__).with_suffix("") / f"{name}.sql"
    for statement in file.read_text().split(";\n\n"):
        # a colon would begin a parameter
        op.execute(text(statement.rstrip(";\n").replace(":", r"\:")))
