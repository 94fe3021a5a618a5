"""The accounting: what became of every offset of every Kafka partition."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Table,
    text,
)
from sqlalchemy.dialects.postgresql import BYTEA, INT8MULTIRANGE, JSONB

from inference_store.index.tables.inferences import CODE_POINTS, METADATA, count, now

_PARTITION = ("cluster", "topic", "epoch", "partition")


def _partition_columns() -> list[Column[Any]]:
    """Return the columns of a partition: a topic that is created again has a new epoch."""
    return [
        Column("cluster", CODE_POINTS, primary_key=True),
        Column("topic", CODE_POINTS, primary_key=True),
        Column("epoch", Integer, primary_key=True, autoincrement=False),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    ]


# One writer a row: the ingester that the partition is assigned to.
kafka_partition = Table(
    "kafka_partition",
    METADATA,
    *_partition_columns(),
    Column("first", BigInteger, nullable=False),
    Column("next", BigInteger, nullable=False),
    # the last record read, by which a topic created again is recognised
    Column("last_offset", BigInteger),
    Column("last_hash", BYTEA),
    count("stored"),
    count("duplicate"),
    count("dead"),
    count("parked"),
    count("expired"),
    count("erased_again"),
    # offsets below the log's start that were never read
    count("lost"),
    # markers, aborted and compacted records
    count("not_delivered"),
    now("created_at"),
    now("updated_at"),
)

# Where each partition's log ended, as its ingester saw it a few seconds ago; beside the partition's
# row, which a batch keeps locked while it is written.
consumer_lag = Table(
    "consumer_lag",
    METADATA,
    *_partition_columns(),
    Column("end_offset", BigInteger, nullable=False),
    # when the oldest record came that was not written; NULL: none waited, or nobody knows
    Column("oldest_waiting_at", DateTime(timezone=True)),
    now("measured_at"),
)

# Offsets that were lost before they were read, by name.
lost_offsets = Table(
    "lost_offsets",
    METADATA,
    *_partition_columns(),
    Column("lo", BigInteger, primary_key=True, autoincrement=False),
    Column("hi", BigInteger, nullable=False),
)

# What a producer's sequence numbers cover, by the partition they came through and in blocks:
# a partition sees every so-many-th number, so its ranges hardly ever merge within a row.
producer_sequence = Table(
    "producer_sequence",
    METADATA,
    Column("producer", CODE_POINTS, primary_key=True),
    *_partition_columns(),
    # number // 10,000
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("covered", INT8MULTIRANGE, nullable=False),
    now("updated_at"),
)

# What producers say of themselves: the newest report of each reporter, and where it was read.
producer_report = Table(
    "producer_report",
    METADATA,
    Column("producer", CODE_POINTS, primary_key=True),
    # the producer itself, or who found its spool
    Column("reporter", CODE_POINTS, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("booted_at", DateTime(timezone=True), nullable=False),
    Column("reported_at", DateTime(timezone=True), nullable=False),
    *map(count, ("seen", "sampled_out")),
    # reason → exchanges
    Column("dropped", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    *map(count, ("queued", "spooled", "published", "events", "highest_sequence")),
    Column("final", Boolean, nullable=False, server_default=text("false")),
    # silent for a long time although its log has been read to the end
    Column("silent", Boolean, nullable=False, server_default=text("false")),
    Column("cluster", CODE_POINTS, nullable=False),
    Column("topic", CODE_POINTS, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    now("heard_at"),
)

# One row: the sums of the producers that were heard so long ago that they are no longer kept.
former_producers = Table(
    "former_producers",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("heard_until", DateTime(timezone=True), nullable=False),
    *map(count, ("producers", "given", "arrived", "dropped")),
)

# One row: until when ingesters quarantine what they cannot store, however much it is.
dead_letter_limit_lift = Table(
    "dead_letter_limit_lift",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("lifted_until", DateTime(timezone=True), nullable=False),
)


# An event that was read and is not stored, with its place and its bytes.
unsettled_event = Table(
    "unsettled_event",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", CODE_POINTS, nullable=False),
    Column("topic", CODE_POINTS, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("record_time", DateTime(timezone=True), nullable=False),
    Column("record_key", BYTEA),
    Column("payload", BYTEA),
    Column("headers", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("reason", CODE_POINTS, nullable=False),
    Column("detail", CODE_POINTS, nullable=False),
    Column("model_id", CODE_POINTS),
    Column("inference_id", CODE_POINTS),
    # 'open', 'redrive' (asked for), 'parked', 'discarded', or what a retry made of it
    Column("state", CODE_POINTS, nullable=False, server_default=text("'open'")),
    # whether it is or was a dead letter, and so stays listed when it is settled
    Column("was_dead", Boolean, nullable=False, server_default=text("false")),
    Column("discard_reason", CODE_POINTS),
    # the storage key that a parked event waits for
    Column("missing", CODE_POINTS),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    # NULL: nobody tries it
    Column("next_attempt_at", DateTime(timezone=True)),
    # or when a redrive parked it
    now("created_at"),
    now("updated_at"),
    Index(
        "unsettled_event_place_key",
        *(*_PARTITION, "offset"),
        unique=True,
    ),
    Index("unsettled_event_state_id_idx", "state", "id"),
    Index("unsettled_event_created_at_idx", "created_at"),
    Index("unsettled_event_next_attempt_at_idx", "next_attempt_at"),
    ForeignKeyConstraint(
        _PARTITION,
        [f"kafka_partition.{column}" for column in _PARTITION],
        name="unsettled_event_kafka_partition_fkey",
    ),
)
