"""The models, their names, their inferences, and the counts of these."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TEXT, UUID
from sqlalchemy.sql.type_api import TypeEngine

METADATA = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)

# Code-point order everywhere: the same order as Python's, on any operating system.
CODE_POINTS = TEXT(collation="C")


def now(name: str) -> Column[Any]:
    """Return a column of the time at which a row is inserted."""
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


def count(name: str) -> Column[Any]:
    """Return a column that counts from 0."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


registration = Table(
    "registration",
    METADATA,
    Column("model", Integer, Identity(), primary_key=True),
    Column("model_id", CODE_POINTS, nullable=False, unique=True),
    Column("project_id", CODE_POINTS),
    Column("name", CODE_POINTS),
    Column("task_type", CODE_POINTS),
    Column("class_labels", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("output_mapping", JSONB),
    # 'event' where the first event of an unknown model made it, 'ledger' where a replay did,
    # 'removed' where it goes with what is left of it, else 'api'
    Column("registered_by", CODE_POINTS, nullable=False),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    now("registered_at"),
    now("updated_at"),
    # until `moves_at` the policy of the project that it left goes on to decide
    Column("left_project_id", CODE_POINTS),
    Column("moves_at", DateTime(timezone=True)),
)

# The integers of models whose registration was removed: what was erased of them is remembered by
# it, so that a model of the same id gets the same one again.
former_model = Table(
    "former_model",
    METADATA,
    Column("model_id", CODE_POINTS, primary_key=True),
    Column("model", Integer, nullable=False),
)

metadata_key = Table(
    "metadata_key",
    METADATA,
    Column("key", Integer, Identity(always=True), primary_key=True),
    Column("name", CODE_POINTS, nullable=False, unique=True),
    # whether some inference may have several values of it, as elements of arrays always may
    Column("several", Boolean, nullable=False, server_default=text("false")),
)

label = Table(
    "label",
    METADATA,
    Column("label", Integer, Identity(always=True), primary_key=True),
    Column("name", CODE_POINTS, nullable=False, unique=True),
)

# Which labels a model has used: its cap is counted here, and unknown ones are recognised.
model_label = Table(
    "model_label",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("label", Integer, primary_key=True, autoincrement=False),
)

# Which keys a model has used: its cap is counted here.
model_key = Table(
    "model_key",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("key", Integer, primary_key=True, autoincrement=False),
)

_SEEN = (
    ("model", Integer),
    ("key", Integer),
    ("type", CODE_POINTS),
    # '' for a value that is indexed as its type, else why it is not, or how it came
    ("flag", CODE_POINTS),
)

# The key registry, folded: what has been seen of a model's key, by type.
metadata_key_seen = Table(
    "metadata_key_seen",
    METADATA,
    *(Column(name, kind, primary_key=True, autoincrement=False) for name, kind in _SEEN),
    Column("count", BigInteger, nullable=False),
    Column("first_seen", DateTime(timezone=True), nullable=False),
    Column("last_seen", DateTime(timezone=True), nullable=False),
    Column("examples", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
)

# Appended by every batch, folded into metadata_key_seen by a job: no hot row.
metadata_key_delta = Table(
    "metadata_key_delta",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    *(Column(name, kind, nullable=False) for name, kind in _SEEN),
    Column("count", BigInteger, nullable=False),
    Column("first_seen", DateTime(timezone=True), nullable=False),
    Column("last_seen", DateTime(timezone=True), nullable=False),
    Column("examples", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Index("metadata_key_delta_model_key_idx", "model", "key"),
)

# The spans of time that the partitioned tables are cut into.
partition_span = Table(
    "partition_span",
    METADATA,
    Column("name", CODE_POINTS, primary_key=True),
    Column("lo", DateTime(timezone=True), nullable=False, unique=True),
    Column("hi", DateTime(timezone=True), nullable=False, unique=True),
    # 'open', or 'dropping' from the moment nothing in it may be kept
    Column("state", CODE_POINTS, nullable=False, server_default=text("'open'")),
    now("created_at"),
    # rows of `inference` when its statistics were last gathered
    count("analysed_rows"),
)


# The tables of inferences: one parent and its side tables, all partitioned by time.
#
# `uid` sorts by time, so a range of uid is a span of time. The model's integer leads every
# key: nearly every question is about one model, and the tables distribute by it.

BY_TIME = "RANGE (uid)"


def _time(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True))


inference = Table(
    "inference",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("inference_id", CODE_POINTS, nullable=False),
    Column("received_at", DateTime(timezone=True), nullable=False),
    _time("forwarded_at"),
    _time("responded_at"),
    _time("published_at"),
    _time("indexed_at"),
    # s3://bucket/key; NULL: there is none
    Column("data_storage_key", CODE_POINTS),
    Column("response_storage_key", CODE_POINTS),
    Column("metadata_storage_key", CODE_POINTS),
    Column("capture_id", UUID(as_uuid=True)),
    # A column with a `doc` is a property: filters, sorts and queryables know it by that sentence.
    Column("ok", Boolean, doc="whether the request succeeded"),
    Column("http_status", Integer, doc="the HTTP status of the answer"),
    Column("grpc_code", Integer, doc="the gRPC code of the answer"),
    Column("error", CODE_POINTS, doc="what went wrong, in the server's words"),
    Column("trace_id", CODE_POINTS, doc="the trace of the request"),
    Column("model_version", CODE_POINTS, doc="the version of the model"),
    Column("task_type", CODE_POINTS, doc="the task type"),
    Column("protocol", CODE_POINTS, doc="the protocol of the request"),
    Column("action", CODE_POINTS, doc="what was asked of the model"),
    Column("batch_index", Integer, doc="its place in the request"),
    Column("batch_size", Integer, doc="how many the request had"),
    Column("data_hash", CODE_POINTS, doc="SHA-256 of the datum, in hexadecimal"),
    Column("data_size", BigInteger, doc="bytes of the datum"),
    Column("data_content_type", CODE_POINTS, doc="the datum's media type"),
    Column("width", Integer, doc="the image's width in pixels"),
    Column("height", Integer, doc="the image's height in pixels"),
    Column("top_label", Integer),
    Column("top_score", Double),
    # NULL: the response failed or could not be read, so its predictions are unknown
    Column("prediction_count", Integer),
    Column("flags", ARRAY(CODE_POINTS), nullable=False, server_default=text("'{}'")),
    Column("problem", CODE_POINTS),
    # the metadata as they came (bytes: NUL, lone surrogates and huge exponents survive)
    Column("metadata", BYTEA),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    _time("data_deleted_at"),
    # the event as it came, where the ingester keeps it; NULL: there is none
    Column("sidecar_storage_key", CODE_POINTS),
    # when the response's blob was deleted; its predictions stay
    _time("response_deleted_at"),
    # of its objects together; NULL: not asked yet
    Index("inference_model_inference_id_idx", "model", "inference_id", "uid"),
    Index(
        "inference_model_data_hash_idx",
        "model",
        "data_hash",
        "uid",
        postgresql_where=text("data_hash IS NOT NULL"),
    ),
    # the outcome of each, for counts and groups that need no row
    Index(
        "inference_outcome_idx",
        "model",
        "uid",
        postgresql_include=["ok", "top_label", "top_score", "prediction_count"],
    ),
    # what the deletion of inputs has still to look at, however late it arrived
    Index(
        "inference_input_kept_idx",
        "model",
        "uid",
        postgresql_where=text("data_deleted_at IS NULL"),
    ),
    # what arrived last: rows lie in the order of their arrival
    Index(
        "inference_indexed_at_idx",
        "indexed_at",
        postgresql_using="brin",
        postgresql_with={"autosummarize": "on", "pages_per_range": 32},
    ),
    postgresql_partition_by=BY_TIME,
)

# Ids of the request, the response or a header that were not chosen as the inference's id.
inference_alias = Table(
    "inference_alias",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("alias", CODE_POINTS, primary_key=True),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Index("inference_alias_model_uid_idx", "model", "uid"),
    postgresql_partition_by=BY_TIME,
)


def _side_table(name: str, value: TypeEngine[Any], *more: Column[Any]) -> Table:
    return Table(
        name,
        METADATA,
        Column("model", Integer, primary_key=True, autoincrement=False),
        Column("key", Integer, primary_key=True, autoincrement=False),
        Column("value", value, primary_key=True),
        Column("uid", UUID(as_uuid=True), primary_key=True),
        *more,
        Index(f"{name}_model_uid_idx", "model", "uid"),
        postgresql_partition_by=BY_TIME,
    )


metadata_number = _side_table("metadata_number", Numeric())
# `value` is the whole text up to 512 bytes, else a prefix and a hash; then `whole` has all of it.
metadata_string = _side_table("metadata_string", CODE_POINTS, Column("whole", CODE_POINTS))
metadata_bool = _side_table("metadata_bool", Boolean())
metadata_timestamp = _side_table("metadata_timestamp", DateTime(timezone=True))

# Keys that were sent, but have no row in the tables above.
metadata_presence = Table(
    "metadata_presence",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("key", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("is_null", Boolean, nullable=False),
    Index("metadata_presence_model_uid_idx", "model", "uid"),
    postgresql_partition_by=BY_TIME,
)


def _box() -> list[Column[Any]]:
    """Return the columns of a box in pixels, upright or oriented."""
    # xmin is the name of a system column: `prediction.c.xmin` is the column box_xmin
    return [
        *(Column(f"box_{name}", Double, key=name) for name in ("xmin", "ymin", "xmax", "ymax")),
        Column("area", Double),
        *(Column(name, Double) for name in ("cx", "cy", "w", "h", "angle")),
    ]


prediction = Table(
    "prediction",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, nullable=False),
    Column("output", Integer, nullable=False),
    Column("output_name", CODE_POINTS),
    Column("label", Integer),
    Column("score", Double),
    *_box(),
    Column("prompt", CODE_POINTS),
    Column("answer", CODE_POINTS),
    Column("text", CODE_POINTS),
    Column("start", Integer),
    Column("end", Integer),
    Column("value", Numeric),
    Index("prediction_model_label_score_idx", "model", "label", "score", "uid"),
    postgresql_partition_by=BY_TIME,
)

# What is true of an inference, as one source says. A set without items says that there is nothing
# to find; an inference without a set has no truth.
truth_set = Table(
    "truth_set",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("source", CODE_POINTS, primary_key=True),
    # raised by each replacement
    Column("revision", Integer, nullable=False),
    # whether it names all there is: what is predicted beside it is wrong
    Column("complete", Boolean, nullable=False),
    # of its first item that has one
    Column("label", Integer),
    Column("item_count", Integer, nullable=False),
    Column("by", CODE_POINTS, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    # of its content: what comes again changes nothing
    Column("content_hash", BYTEA, nullable=False),
    # s3://bucket/segment#offset+length
    Column("storage_key", CODE_POINTS, nullable=False),
    Index("truth_set_model_label_idx", "model", "label", "uid"),
    postgresql_partition_by=BY_TIME,
)

truth = Table(
    "truth",
    METADATA,
    Column("model", Integer, primary_key=True, autoincrement=False),
    Column("uid", UUID(as_uuid=True), primary_key=True),
    Column("source", CODE_POINTS, primary_key=True),
    Column("ordinal", Integer, primary_key=True, autoincrement=False),
    Column("label", Integer),
    *_box(),
    Column("text", CODE_POINTS),
    Column("value", Numeric),
    Index("truth_model_label_idx", "model", "label", "uid"),
    postgresql_partition_by=BY_TIME,
)

SIDE_TABLES = {
    "number": metadata_number,
    "string": metadata_string,
    "bool": metadata_bool,
    "timestamp": metadata_timestamp,
}
PARTITIONED = (
    inference,
    inference_alias,
    *SIDE_TABLES.values(),
    metadata_presence,
    prediction,
    truth_set,
    truth,
)


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
    now("begun_at"),
    # NULL: it was begun
    Column("counted_at", DateTime(timezone=True)),
    Column("inferences", BigInteger),
    # of which no prediction has a label
    Column("unlabelled", BigInteger),
    # inferences by label's integer, {"7": 12}; NULL: too many labels
    Column("labels", JSONB(none_as_null=True)),
    # inferences by key's integer: with the key, and with a value, {"3": [12, 10]}; NULL: too many
    Column("keys", JSONB(none_as_null=True)),
    # by time, as query/bars.py writes it: {"grain": 900, "bars": {"1935360": [12, 1, 9]}}
    Column("bars", JSONB(none_as_null=True)),
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
    now("at"),
    Index("outdated_count_partition_count_idx", "partition_count"),
)
