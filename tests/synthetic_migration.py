"""Synthetic migrations, for tests of those of a later version."""

import shutil
from pathlib import Path

from inference_store.index.schema import MIGRATIONS, newest

NEXT = f"{int(newest()) + 1:04}"
INDEX, COLUMNS = "inference_size_idx", "(model, uid) INCLUDE (width, height)"
_EXAMPLE = Path(__file__).with_name("index_migration.py")
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


def copy_migrations_with_one_more(folder: Path) -> Path:
    """Copy the migrations to `folder`, with one more that only adds; return the copy."""
    return _copy_with(folder, "synthetic", _SCRIPT.format(next=NEXT, head=newest()))


def copy_migrations_with_an_index(folder: Path) -> Path:
    """Copy the migrations to `folder`, with one more that builds an index beside writers."""
    numbers = f'revision = "{NEXT}"\ndown_revision: str | None = "{newest()}"'
    example = _EXAMPLE.read_text()
    script = example.replace('revision = "0002"\ndown_revision: str | None = "0001"', numbers)
    return _copy_with(folder, "index", script)


def _copy_with(folder: Path, name: str, script: str) -> Path:
    copy = folder / "migrations"
    if not copy.exists():
        shutil.copytree(MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "versions" / f"{NEXT}_{name}.py").write_text(script)
    return copy
