"""Two erasures may mark the same inference: each has a mark of its own."""

from alembic import op
from sqlalchemy import text

revision = "0021"
down_revision: str | None = "0020"
branch_labels: str | None = None
depends_on: str | None = None
contract = (
    "the table has only what is being erased, so that its key is made anew within moments; the"
    " version before names no key in its ON CONFLICT, and marks nothing twice"
)

_UP = (
    "ALTER TABLE erasing DROP CONSTRAINT erasing_pkey",
    "ALTER TABLE erasing ADD CONSTRAINT erasing_pkey PRIMARY KEY (model, uid, scope, erasure)",
)
_DOWN = (
    # one mark of each stays: what it says goes all the same
    "DELETE FROM erasing AS one USING erasing AS other WHERE one.model = other.model"
    " AND one.uid = other.uid AND one.scope = other.scope AND one.erasure > other.erasure",
    "ALTER TABLE erasing DROP CONSTRAINT erasing_pkey",
    "ALTER TABLE erasing ADD CONSTRAINT erasing_pkey PRIMARY KEY (model, uid, scope)",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(text(statement))


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(text(statement))
