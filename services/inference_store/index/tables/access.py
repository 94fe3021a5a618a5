"""Keys, sessions and the audit; saved views, exports and reconciliations."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    text,
)
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, UUID

from inference_store.index.tables.inferences import CODE_POINTS, METADATA, count, now

api_key = Table(
    "api_key",
    METADATA,
    Column("id", CODE_POINTS, primary_key=True),
    Column("name", CODE_POINTS, nullable=False),
    # SHA-256 of the key's text, and of the one before it while that still works
    Column("hash", BYTEA, nullable=False),
    Column("old_hash", BYTEA),
    Column("old_works_until", DateTime(timezone=True)),
    # [{"rights": […], "project_id" or "model_id"}]
    Column("grants", JSONB, nullable=False),
    now("created_at"),
    Column("created_by", CODE_POINTS, nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("rotated_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    # raised by every change but the last use; whether the ledger has one; whether a restored
    # backup has the key and the ledger does not
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("in_ledger", Boolean, nullable=False, server_default=text("false")),
    Column("unconfirmed", Boolean, nullable=False, server_default=text("false")),
)

web_session = Table(
    "web_session",
    METADATA,
    # SHA-256 of the id in the browser's cookie
    Column("id_hash", BYTEA, primary_key=True),
    # as the audit names whoever signed in
    Column("caller", CODE_POINTS, nullable=False),
    # SHA-256 of the key or the token of the settings that it was started with
    Column("secret_hash", BYTEA),
    # of the token that it was started with, and the values of its roles claim
    Column("issuer", CODE_POINTS),
    Column("roles", JSONB),
    # the `Host` that it was started at, and counts for
    Column("host", CODE_POINTS, nullable=False),
    now("started_at"),
    # exact to a minute
    now("used_at"),
    # when it ends if it is not used until then; never after `expires_at`
    Column("idle_until", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index("web_session_caller_idx", "caller", "used_at"),
    Index("web_session_idle_until_idx", "idle_until"),
)

audit = Table(
    "audit",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    now("at"),
    Column("actor", CODE_POINTS, nullable=False),
    Column("action", CODE_POINTS, nullable=False),
    Column("model", Integer),
    Column("uid", UUID(as_uuid=True)),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # the model by name, as it was called then: a registration may go, the entry stays
    Column("model_id", CODE_POINTS),
    Column("client", CODE_POINTS),
    # its place in the chain; NULL for the moment until the chain's writer comes by
    Column("number", BigInteger),
    # the entry that says which erasure took `uid` and `detail`
    Column("taken_by", BigInteger),
    Index("audit_at_idx", "at"),
    Index("audit_actor_id_idx", "actor", "id"),
    Index("audit_model_id_id_idx", "model_id", "id"),
    Index("audit_uid_idx", "uid"),
    # entries about many inferences at once
    Index(
        "audit_inferences_idx",
        text("(detail -> 'inferences')"),
        postgresql_using="gin",
        postgresql_where=text("action = 'thumbnails_read'"),
    ),
    Index("audit_unchained_idx", "id", postgresql_where=text("number IS NULL")),
)


# Append-only by a trigger; an entry's values lie in `audit`, where an erasure can take them.
audit_link = Table(
    "audit_link",
    METADATA,
    # 1, 2, 3 … without a hole
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("entry", BigInteger, nullable=False),
    # NULL once the values were taken: without it their hash cannot be guessed from
    Column("salt", BYTEA),
    Column("values_hash", BYTEA, nullable=False),
    # over the hash before, what is fixed in the entry and the hash of its values
    Column("hash", BYTEA, nullable=False),
    Index("audit_link_entry_key", "entry", unique=True),
)

# One row; only the chain's writer touches it, so that no request waits for it.
audit_head = Table(
    "audit_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    count("number"),
    Column("hash", BYTEA, nullable=False),
    # the last number that retention has cut off, and its hash
    count("cut"),
    Column("cut_hash", BYTEA, nullable=False),
    # the newest: where the chain stood, and up to where it may be cut; NULL: there was none yet
    Column("checkpoint", JSONB),
)

saved_view = Table(
    "saved_view",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, nullable=False),
    # 'private': of `created_by`; 'project': of whoever may read the model
    Column("shared", CODE_POINTS, nullable=False),
    # NULL: an erasure took it, with the other texts
    Column("name", CODE_POINTS),
    # CQL2-Text, as it was written; NULL: none
    Column("filter", CODE_POINTS),
    # '24h', or '<from>..<to>'; NULL: all of it
    Column("time", CODE_POINTS),
    Column("sort", CODE_POINTS, nullable=False),
    # 'grid', 'patches', 'table', 'map'
    Column("view", CODE_POINTS, nullable=False),
    Column("columns", JSONB, nullable=False, server_default=text("'[]'")),
    # {"every", "of"}: its number is a metric; NULL: it is not
    Column("watch", JSONB(none_as_null=True)),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("created_by", CODE_POINTS, nullable=False),
    now("created_at"),
    Column("updated_by", CODE_POINTS, nullable=False),
    now("updated_at"),
    # the erasure that took its texts
    Column("erased_by", UUID(as_uuid=True)),
    Index("saved_view_model_created_at_idx", "model", "created_at"),
    # two that bear one name could not be told apart
    Index(
        "saved_view_private_name_key",
        "created_by",
        "model",
        "name",
        unique=True,
        postgresql_where=text("shared = 'private'"),
    ),
    Index(
        "saved_view_project_name_key",
        "model",
        "name",
        unique=True,
        postgresql_where=text("shared = 'project'"),
    ),
)


export_job = Table(
    "export_job",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, nullable=False),
    # 'parquet', 'arrow', ...
    Column("format", CODE_POINTS, nullable=False),
    # {"filter", "saved", "since", "until", "include", "blobs"}; after an erasure took the filter's
    # values, both forms of it are null
    Column("document", JSONB, nullable=False),
    # 'pending', 'listing', 'writing', 'done', 'stale': an erasure deleted parts; 'failed',
    # 'cancelling', 'cancelled', 'expired'
    Column("state", CODE_POINTS, nullable=False),
    Column("requested_by", CODE_POINTS, nullable=False),
    now("requested_at"),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    # from then on its parts are deleted
    Column("expires_at", DateTime(timezone=True), nullable=False),
    # the last uid that was looked at for the lists; NULL: none
    Column("listed_to", UUID(as_uuid=True)),
    *(count(name) for name in ("members", "lists", "written", "rows", "bytes", "gone", "missing")),
    # of parts that erasures deleted
    count("parts_deleted"),
    count("inferences_deleted"),
    # why it waits or has failed
    Column("error", CODE_POINTS),
    # when it is tried again after an error
    Column("retry_at", DateTime(timezone=True)),
    # the erasure that took the filter
    Column("erased_by", UUID(as_uuid=True)),
    Index("export_job_requested_at_idx", "requested_at"),
    Index("export_job_model_requested_at_idx", "model", "requested_at"),
)

# A list of members is a part: what it names is read and written as one object. The lists stay as
# long as a copy may: what an erasure takes is looked up in them.
export_part = Table(
    "export_part",
    METADATA,
    Column("export", UUID(as_uuid=True), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("model", Integer, nullable=False),
    Column("first", UUID(as_uuid=True), nullable=False),
    Column("last", UUID(as_uuid=True), nullable=False),
    # 16 bytes each, sorted, without those that were erased
    Column("uids", LargeBinary, nullable=False),
    # 'listed'; 'writing': its object may be in the bucket; 'written'; 'stale': an erasure took
    # members, and the object is deleted before it ends; 'removed': with the export
    Column("state", CODE_POINTS, nullable=False),
    # NULL: there is no object
    Column("storage_key", CODE_POINTS),
    # that the object has, or had before it was deleted
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Column("sha256", LargeBinary),
    Column("written_at", DateTime(timezone=True)),
    # members that were erased before the object was written
    count("gone"),
    # blobs that the object should have and has not
    count("missing"),
    Index("export_part_model_idx", "model", "first", "last"),
)

# Who was given links to an export's parts.
export_download = Table(
    "export_download",
    METADATA,
    Column("export", UUID(as_uuid=True), primary_key=True),
    Column("actor", CODE_POINTS, primary_key=True),
    now("first_at"),
    now("last_at"),
    count("parts"),
)

# What erasures took of exports, a row for each batch and part.
export_erased = Table(
    "export_erased",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("export", UUID(as_uuid=True), nullable=False),
    Column("part", Integer, nullable=False),
    Column("erasure", UUID(as_uuid=True), nullable=False),
    # what went: 'inference', 'input' or 'response'
    Column("scope", CODE_POINTS, nullable=False),
    Column("inferences", BigInteger, nullable=False),
    # 16 bytes each; NULL: their time is over
    Column("uids", LargeBinary),
    # the object that had them; NULL: there was none
    Column("storage_key", CODE_POINTS),
    now("erased_at"),
    # when the part's object was seen to be gone in every version, and its list is without them
    Column("deleted_at", DateTime(timezone=True)),
    Index("export_erased_export_idx", "export", "id"),
    Index("export_erased_erasure_idx", "erasure"),
)

# What a replay (a job of the format 'replay') sends again, and what came of it. The row goes with
# either inference, unless a replay is still to come.
replay_item = Table(
    "replay_item",
    METADATA,
    Column("job", UUID(as_uuid=True), primary_key=True),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, nullable=False),
    # 'listed'; 'sending': noted before the call; 'waiting': called; 'compared'; 'missing': it was
    # not captured in time; 'skipped': never sent; 'erased': the original was, by request, after it
    # was sent, and the replay had not arrived
    Column("state", CODE_POINTS, nullable=False),
    # why it was skipped
    Column("reason", CODE_POINTS),
    Column("sent_at", DateTime(timezone=True)),
    # of the answer; NULL: none came, or over the other transport
    Column("http_status", Integer),
    Column("grpc_code", Integer),
    # the inference that the call became
    Column("to_model", Integer),
    Column("to_uid", UUID(as_uuid=True)),
    # how much they disagree, 0: not at all; and in what
    Column("disagreement", Double),
    Column("difference", JSONB),
    Index("replay_item_job_state_idx", "job", "state", "uid"),
    Index("replay_item_model_uid_idx", "model", "uid"),
    Index("replay_item_to_model_to_uid_idx", "to_model", "to_uid"),
)

reconciliation = Table(
    "reconciliation",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    # NULL: every model
    Column("model_id", CODE_POINTS),
    # 'schedule', 'request' or 'command'
    Column("cause", CODE_POINTS, nullable=False),
    # 'none' or 'rebuild'
    Column("repair", CODE_POINTS, nullable=False),
    # 'pending', 'comparing', 'repairing', 'done', 'failed'
    Column("state", CODE_POINTS, nullable=False),
    now("requested_at"),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    # the places that are walked, as they were when it began, and how far it is
    Column("places", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("place", Integer, nullable=False, server_default=text("0")),
    Column("after", CODE_POINTS, nullable=False, server_default=text("''")),
    # where the topic ended when it began: {"cluster", "topic", "ends"}, by partition
    Column("noted_at", DateTime(timezone=True)),
    Column("noted", JSONB),
    # objects from then on may have an event that is still to come; NULL: nothing is judged
    Column("orphans_before", DateTime(timezone=True)),
    # the sentence that says how it was found
    Column("because", CODE_POINTS),
    Column("counts", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("books", JSONB),
    Column("error", CODE_POINTS),
    Index("reconciliation_requested_at_idx", "requested_at"),
)


def _owned(table: str) -> Column[Any]:
    """Return the column of the reconciliation that a row goes with."""
    owner = ForeignKey("reconciliation.id", name=f"{table}_fkey", ondelete="CASCADE")
    return Column("reconciliation", UUID(as_uuid=True), owner, primary_key=True)


reconciliation_finding = Table(
    "reconciliation_finding",
    METADATA,
    _owned("reconciliation_finding"),
    # 'orphan' (an object without a row), 'missing' (a row without its object), 'unreadable'
    Column("kind", CODE_POINTS, primary_key=True),
    Column("storage_key", CODE_POINTS, primary_key=True),
    # of a row; NULL of an object that none names
    Column("model_id", CODE_POINTS),
    Column("uid", UUID(as_uuid=True)),
    Column("bytes", BigInteger),
    Column("modified_at", DateTime(timezone=True)),
    # 'found'; of an orphan that was to be erased 'erasing', 'erased', 'held', 'kept'
    Column("state", CODE_POINTS, nullable=False, server_default=text("'found'")),
    Column("detail", CODE_POINTS),
)

# The objects that dead letters and parked events name, while a reconciliation goes on.
reconciliation_named = Table(
    "reconciliation_named",
    METADATA,
    _owned("reconciliation_named"),
    Column("storage_key", CODE_POINTS, primary_key=True),
)
