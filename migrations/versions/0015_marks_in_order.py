"""Marks of erasure are worked off in the order of their storage keys: their index says it."""

from alembic import op
from sqlalchemy import text

revision = "0015"
down_revision: str | None = "0014"
branch_labels: str | None = None
depends_on: str | None = None
contract = (
    "the table has only what is being erased: the index is made anew within moments, and the"
    " version before is served by the new one as well"
)

_KEY = "coalesce(data_storage_key, response_storage_key, metadata_storage_key, '')"
_UP = (
    "DROP INDEX erasing_erasure_idx",
    f"CREATE INDEX erasing_erasure_idx ON erasing (erasure, model, {_KEY}, uid)",
)
_DOWN = (
    "DROP INDEX erasing_erasure_idx",
    "CREATE INDEX erasing_erasure_idx ON erasing (erasure)",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
