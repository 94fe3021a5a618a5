"""A migration that does not exist: for tests of what a later version's would do."""

import shutil
from pathlib import Path

from inference_store.index.schema import MIGRATIONS, newest

NEXT = f"{int(newest()) + 1:04}"
_SCRIPT = '''"""A column here and there, and a table."""

from alembic import op

revision = "{next}"
down_revision = "{head}"


def upgrade() -> None:
    op.execute("ALTER TABLE inference ADD COLUMN colour TEXT")
    op.execute("ALTER TABLE prediction ADD COLUMN weight INTEGER NOT NULL DEFAULT 1")
    op.execute("ALTER TABLE kafka_partition ADD COLUMN seen BIGINT NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE registration ADD COLUMN owner TEXT")
    op.execute("CREATE TABLE shelf (id BIGINT PRIMARY KEY, model INTEGER NOT NULL)")
    op.execute("CREATE INDEX shelf_model_idx ON shelf (model)")
'''


def migrations_with_one_more(folder: Path) -> Path:
    """A copy of the migrations in `folder`, with one more that only adds."""
    copy = folder / "migrations"
    if not copy.exists():
        shutil.copytree(MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        script = _SCRIPT.format(next=NEXT, head=newest())
        (copy / "versions" / f"{NEXT}_synthetic.py").write_text(script)
    return copy
