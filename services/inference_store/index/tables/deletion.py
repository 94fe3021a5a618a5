"""Deletion: policies, erasures, holds, certificates and the ledger."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT4MULTIRANGE, INT8MULTIRANGE, JSONB, UUID

from inference_store.index.tables.inferences import CODE_POINTS, METADATA, count, now

_BLOBS = ("data", "response", "metadata", "sidecar")

policy_version = Table(
    "policy_version",
    METADATA,
    # whose policy: 'model' and 'project' by their ids, 'default' by none
    Column("level", CODE_POINTS, primary_key=True),
    Column("subject", CODE_POINTS, primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    # JSON; NULL: it was removed
    Column("document", CODE_POINTS),
    Column("set_by", CODE_POINTS, nullable=False),
    now("set_at"),
    now("effective_at"),
    # before it began
    Column("revoked_at", DateTime(timezone=True)),
    Column("revoked_by", CODE_POINTS),
    Column("reason", CODE_POINTS),
)

# How far the last sweep of a filtered rule came: what it looked at is not looked at again.
policy_sweep = Table(
    "policy_sweep",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("rule", Integer, primary_key=True, autoincrement=False),
    Column("scope", CODE_POINTS, primary_key=True),
    # of everything that decides which inferences it is of
    Column("chain", CODE_POINTS, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
    # when it last looked at everything
    Column("whole_at", DateTime(timezone=True), nullable=False),
)

retention_run = Table(
    "retention_run",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    # NULL: every model, or those of the project
    Column("model", Integer),
    # 'schedule' or 'request'
    Column("cause", CODE_POINTS, nullable=False),
    # 'pending', 'running', 'done', 'failed'
    Column("state", CODE_POINTS, nullable=False),
    now("requested_at"),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    count("inputs_deleted"),
    count("inferences_deleted"),
    Column("partitions_dropped", Integer, nullable=False, server_default=text("0")),
    Column("error", CODE_POINTS),
    count("responses_deleted"),
    Column("project_id", CODE_POINTS),
    Index("retention_run_requested_at_idx", "requested_at"),
)

# One row: rows of `inference` that erasures took, also of those that are no longer kept.
erased_total = Table(
    "erased_total",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    count("inferences"),
)

erasure = Table(
    "erasure",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    # NULL: several, in erasure_model
    Column("model", Integer),
    # 'policy', 'request', 'expired_arrival', 'erased_again', 'replaced', 'orphans'
    Column("cause", CODE_POINTS, nullable=False),
    # 'input' (the datum and what else of the request is kept), 'response' (its blob),
    # 'inference' (all of it), 'truth' (sets that were replaced or deleted), or 'object' (of none)
    Column("scope", CODE_POINTS, nullable=False),
    Column("state", CODE_POINTS, nullable=False),
    Column("run", UUID(as_uuid=True)),
    now("requested_at"),
    Column("finished_at", DateTime(timezone=True)),
    count("inferences"),
    count("objects"),
    Column("error", CODE_POINTS),
    # {"filter", "saved"}, {"inference_ids"} or {"subject"}; NULL: it was marked as it was made
    Column("asked", JSONB),
    Column("requested_by", CODE_POINTS),
    Column("begun_at", DateTime(timezone=True)),
    # from here on an object may be gone, and nothing can be cancelled
    Column("deleting_since", DateTime(timezone=True)),
    # when a lock of S3 ends that stands in the way
    Column("retry_at", DateTime(timezone=True)),
    *map(count, ("marked", "held", "versions", "bytes")),
    # rows that went, by table
    Column("table_rows", JSONB, nullable=False, server_default=text("'{}'")),
    Column("oldest", DateTime(timezone=True)),
    Column("newest", DateTime(timezone=True)),
    # the newest of its certificates; NULL: none
    Column("certificate", BigInteger),
    # the rules and limits that let it expire: level, subject and version of their policy
    Column("decided_by", JSONB, nullable=False, server_default=text("'[]'")),
    # when it came into force, by the clock of Postgres, as for holds: clocks of processes differ
    Column(
        "in_force_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.clock_timestamp(),
    ),
    # who gave up what holds kept of it, and how many by hold; NULL: nobody
    Column("given_up", JSONB),
    Index("erasure_state_idx", "state"),
    Index("erasure_model_requested_at_idx", "model", "requested_at"),
)

# The models of an erasure that someone asked for, and how far each is marked.
erasure_model = Table(
    "erasure_model",
    METADATA,
    Column("erasure", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, primary_key=True, autoincrement=False),
    # the last uid that was looked at, and when all had been
    Column("marked_to", UUID(as_uuid=True)),
    Column("marked_at", DateTime(timezone=True)),
    Index("erasure_model_model_idx", "model", "erasure"),
)

# What S3 would not let go: a lock, a legal hold, a right that is missing.
erasure_obstacle = Table(
    "erasure_obstacle",
    METADATA,
    Column("erasure", UUID(as_uuid=True), primary_key=True),
    Column("storage_key", CODE_POINTS, primary_key=True),
    Column("code", CODE_POINTS, nullable=False),
    Column("message", CODE_POINTS, nullable=False),
    # when it may go; NULL: nobody says
    Column("retry_at", DateTime(timezone=True)),
    now("seen_at"),
)

# Marks of erasure: small, empty most of the time, anti-joined by every reader.
# It names the objects too, so that what was never stored can be erased as well.
# Two erasures may mark the same: each ends only when it is gone, whatever becomes of the other.
erasing = Table(
    "erasing",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("scope", CODE_POINTS, primary_key=True),
    Column("erasure", UUID(as_uuid=True), primary_key=True),
    *(Column(f"{blob}_storage_key", CODE_POINTS) for blob in _BLOBS),
    # since then its objects may be gone; NULL: a legal hold placed now still keeps everything
    Column("claimed_at", DateTime(timezone=True)),
    # when its erasure had deleted it, says a replay of the ledger: no hold keeps it any more
    Column("erased_at", DateTime(timezone=True)),
    # when a certificate named it, says such a replay too: no other names it
    Column("certified_at", DateTime(timezone=True)),
)

# Marks are worked off in the order of what lies side by side in the bucket; '' has no objects.
MARKED_KEY = func.coalesce(
    erasing.c.data_storage_key,
    erasing.c.response_storage_key,
    erasing.c.metadata_storage_key,
    text("''"),
)
Index("erasing_erasure_idx", erasing.c.erasure, erasing.c.model, MARKED_KEY, erasing.c.uid)

# Objects that no inference names, of an erasure of cause 'orphans': small, empty most of the time.
erasing_object = Table(
    "erasing_object",
    METADATA,
    Column("storage_key", CODE_POINTS, primary_key=True),
    Column("erasure", UUID(as_uuid=True), nullable=False),
    # since then it may be gone, and no event that names it is stored
    Column("claimed_at", DateTime(timezone=True)),
    Index("erasing_object_erasure_idx", "erasure", "storage_key"),
)

# What was erased does not come back with a late redelivery.
tombstone = Table(
    "tombstone",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    now("erased_at"),
    Index("tombstone_erased_at_idx", "erased_at"),
)

# The same for a span of time that was dropped whole: what `erased_batch` has of the model in
# [lo, hi).
erased_span = Table(
    "erased_span",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("model", Integer, nullable=False),
    Column("lo", DateTime(timezone=True), nullable=False),
    Column("hi", DateTime(timezone=True), nullable=False),
    now("erased_at"),
    Index("erased_span_model_lo_key", "model", "lo", "hi", unique=True),
)

# The uids that went with a span, a row a batch: a tombstone each costs more than dropping them.
erased_batch = Table(
    "erased_batch",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("model", Integer, nullable=False),
    Column("first", UUID(as_uuid=True), nullable=False),
    Column("last", UUID(as_uuid=True), nullable=False),
    # 16 bytes each
    Column("uids", LargeBinary, nullable=False),
    now("erased_at"),
    Index("erased_batch_model_first_idx", "model", "first"),
    Index("erased_batch_erased_at_idx", "erased_at"),
)

# Who points to a blob whose key is not of our own layout. Not cut by time.
blob_reference = Table(
    "blob_reference",
    METADATA,
    Column("storage_key", CODE_POINTS, primary_key=True),
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Index("blob_reference_model_uid_idx", "model", "uid"),
    # the references to members of a segment: few, because owners have none
    Index(
        "blob_reference_segment_idx",
        text("split_part(storage_key, '#', 1)"),
        postgresql_where=text("storage_key LIKE '%#%'"),
    ),
)

# Objects that hold many captures of one model (inference/tar.py), and what erasures have done
# to each; see erasure/segment_claims.py.
segment = Table(
    "segment",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    # s3://bucket/key
    Column("storage_key", CODE_POINTS, primary_key=True),
    # captures, bytes and SHA-256 as it was first written, say its events; NULL: they did not
    Column("members", Integer),
    Column("bytes", BigInteger),
    Column("hash", CODE_POINTS),
    # before and after the newest rewrite, which may not have ended
    Column("last_hash", CODE_POINTS),
    Column("next_hash", CODE_POINTS),
    now("created_at"),
    # ordinals of captures whose inferences are erased
    Column("erased", INT4MULTIRANGE, nullable=False, server_default=text("'{}'")),
    # bytes that their owners have lost, and that other inferences still pointed to
    Column("left_over", INT8MULTIRANGE, nullable=False, server_default=text("'{}'")),
    # the eraser that is at it, and how long no other may be
    Column("leased_by", UUID(as_uuid=True)),
    Column("leased_until", DateTime(timezone=True)),
)


hold = Table(
    "hold",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("name", CODE_POINTS, nullable=False),
    Column("reason", CODE_POINTS, nullable=False),
    # NULL: every model, also those to come
    Column("model", Integer),
    # as `filters.saved` keeps it; of a hold by ids, the filter that names them
    Column("filter", CODE_POINTS, nullable=False),
    # as they were given; NULL: it was given as a filter
    Column("inference_ids", JSONB),
    Column("until", DateTime(timezone=True)),
    Column("placed_by", CODE_POINTS, nullable=False),
    Column("placed_at", DateTime(timezone=True), nullable=False),
    # when it came into force as it is now, by the clock of Postgres and in the fence
    Column("in_force_at", DateTime(timezone=True), nullable=False),
    Column("released_by", CODE_POINTS),
    Column("released_at", DateTime(timezone=True)),
    Column("release_reason", CODE_POINTS),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    # what erasures left for an older revision was taken up; see erasure.mark.held_deletions
    Column("taken_up", Integer, nullable=False, server_default=text("0")),
    Index("hold_placed_at_idx", "placed_at"),
)

# Every revision of a hold, with who made it: never removed, and changed by erasures alone.
hold_change = Table(
    "hold_change",
    METADATA,
    Column("hold", UUID(as_uuid=True), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    # 'placed', 'changed', 'released'
    Column("change", CODE_POINTS, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("actor", CODE_POINTS, nullable=False),
    Column("document", JSONB, nullable=False),
    # it mentions a subject that was erased: its values go once the hold is over
    Column("forget_when_over", Boolean, nullable=False, server_default=text("false")),
    Index("hold_change_forget_idx", "hold", postgresql_where=text("forget_when_over")),
)

# What an erasure left because of a hold: the mark that it had, to be set again after a release.
# Of what is quarantined: `scope` is its table, `uid` the number of its row, and there was no mark.
erasure_held = Table(
    "erasure_held",
    METADATA,
    Column("erasure", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("scope", CODE_POINTS, primary_key=True),
    Column("hold", UUID(as_uuid=True), nullable=False),
    # as it was then; one that has changed since is asked again
    Column("hold_revision", Integer, nullable=False),
    *(Column(f"{blob}_storage_key", CODE_POINTS) for blob in _BLOBS),
    # when it had been claimed before the hold: then some of its objects may be gone
    Column("claimed_at", DateTime(timezone=True)),
    Index("erasure_held_hold_idx", "hold", "hold_revision"),
    # whether an object is kept for what is not stored
    *(Index(f"erasure_held_{name}_idx", f"{name}_storage_key") for name in _BLOBS),
)


# The chain: what was signed, as it lies in an entry of the ledger.
certificate = Table(
    "certificate",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # 'certificate' or 'certificate_key'
    Column("kind", CODE_POINTS, nullable=False),
    # NULL: of a key
    Column("erasure", UUID(as_uuid=True)),
    # NULL: of several models, of one that is forgotten, or of a key
    Column("model", Integer),
    Column("issued_at", DateTime(timezone=True), nullable=False),
    Column("signed", CODE_POINTS, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("certificate_erasure_idx", "erasure"),
    Index("certificate_model_number_idx", "model", "number"),
)

# What went and no certificate names yet, batch by batch, as each batch's own transaction tells it.
# Random bytes: not compressed.
erased_leaves = Table(
    "erased_leaves",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("erasure", UUID(as_uuid=True), nullable=False),
    # which key hashed them
    Column("hashed_by", CODE_POINTS, nullable=False),
    Column("inferences", BigInteger, nullable=False),
    Column("objects", BigInteger, nullable=False),
    Column("oldest", DateTime(timezone=True)),
    Column("newest", DateTime(timezone=True)),
    # their partitions are dropped afterwards: until then rows are left
    Column("span", CODE_POINTS),
    now("recorded_at"),
    Column("leaves", LargeBinary, nullable=False),
    Index("erased_leaves_erasure_idx", "erasure", "id"),
)


# One row: the last entry whose effect is in this database. Number 0: none yet.
ledger_head = Table(
    "ledger_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", CODE_POINTS, nullable=False),
    # entries up to this one have forgotten what they said
    count("forgotten"),
)

# Entries that writers of this database meant to put into the bucket: one that is found there
# and stands here is ours, however its writer ended. Gone once its number has been applied.
ledger_intent = Table(
    "ledger_intent",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", CODE_POINTS, primary_key=True),
    now("intended_at"),
)

# What took effect at once and is written to the bucket within seconds, in this order.
ledger_outbox = Table(
    "ledger_outbox",
    METADATA,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    # the body names it: the effect of the entry deletes it
    Column("id", UUID(as_uuid=True), nullable=False, unique=True),
    Column("kind", CODE_POINTS, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("actor", CODE_POINTS, nullable=False),
)
