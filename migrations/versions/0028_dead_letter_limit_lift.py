"""Until when the limit on dead letters is lifted, by an operator's command.

Only an addition: the services of the version before go on as they are.
"""

from alembic import op
from sqlalchemy import text

revision = "0028"
down_revision: str | None = "0027"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.execute(
        text(
            "CREATE TABLE dead_letter_limit_lift (id INTEGER NOT NULL,"
            " lifted_until TIMESTAMP WITH TIME ZONE NOT NULL,"
            " CONSTRAINT dead_letter_limit_lift_pkey PRIMARY KEY (id))"
        )
    )


def downgrade() -> None:
    op.execute(text("DROP TABLE dead_letter_limit_lift"))
