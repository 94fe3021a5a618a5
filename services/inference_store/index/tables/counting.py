"""The stored counts of partitions that are no longer written, and what outdates them."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Table,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA

# One model in one span of time. It holds from when it was begun, unless something outdates it.
partition_count = Table(
    "partition_count",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("span", CODE_POINTS, nullable=False),
    Column("model", Integer, nullable=False),
    # the span's bounds, as uids
    Column("lo", UUID(as_uuid=True), nullable=False),
    Column("hi", UUID(as_uuid=True), nullable=False),
    Column("begun_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # NULL: it was begun
    Column("counted_at", DateTime(timezone=True)),
    Column("inferences", BigInteger),
    # of which no prediction has a label
    Column("unlabelled", BigInteger),
    # inferences by label's integer, {"7": 12}; NULL: too many labels
    Column("labels", JSONB(none_as_null=True)),
    # inferences by key's integer: with the key, and with a value, {"3": [12, 10]}; NULL: too many
    Column("keys", JSONB(none_as_null=True)),
    ForeignKeyConstraint(
        ["span"], ["partition_span.name"], name="partition_count_span_fkey", ondelete="CASCADE"
    ),
    Index("partition_count_model_lo_idx", "model", "lo"),
    Index("partition_count_span_model_idx", "span", "model"),
)

# A write since a count was begun. Written by a trigger; two writers never wait for each other.
outdated_count = Table(
    "outdated_count",
    METADATA,
    Column("partition_count", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("outdated_count_partition_count_idx", "partition_count"),
)
