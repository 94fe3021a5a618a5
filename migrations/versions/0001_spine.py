"""The spine: registrations, inferences and their side tables, the books, retention.

The partitioned tables are made empty: their spans of time are made as events arrive.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    for statement in Path(__file__).with_suffix(".sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(text(statement.replace(":", r"\:")))


def downgrade() -> None:
    tables = (
        "audit, blob_reference, erased_span, erasing, erasure, tombstone, retention_run,"
        " retention_policy, dead_letter, parked_event, producer_sequence, lost_offsets,"
        " kafka_partition, prediction, metadata_presence, metadata_timestamp, metadata_bool,"
        " metadata_string, metadata_number, inference_alias, inference, partition_span,"
        " metadata_key_delta, metadata_key_seen, model_key, model_label, label, metadata_key,"
        " registration, former_model"
    )
    op.execute(text(f"DROP TABLE {tables} CASCADE"))
