"""Functions that fold case and drop accents, for comparisons of texts that look past them.

Unicode 14's full case folding and its nonspacing marks (Mn), written out: no extension, no ICU,
and the same whatever the locale. Most texts are ASCII and take the short way. What has a FROM is
not inlined, so that its long constants are not repeated in every partition's plan.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    for statement in Path(__file__).with_suffix(".sql").read_text().split(";\n"):
        op.execute(text(statement))


def downgrade() -> None:
    for name in ("case", "accents"):
        op.execute(text(f"DROP FUNCTION fold_{name}(text)"))
        op.execute(text(f"DROP FUNCTION fold_{name}_beyond_ascii(text)"))
