"""The tables of inferences: one parent and its side tables, all partitioned by time.

`uid` sorts by time, so a range of uid is a span of time. The model's integer leads every
key: nearly every question is about one model, and the tables distribute by it.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    Numeric,
    Table,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, UUID
from sqlalchemy.sql.type_api import TypeEngine

from .metadata import CODE_POINTS, METADATA

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
    # xmin is the name of a system column: `prediction.c.xmin` is the column box_xmin
    *(Column(f"box_{name}", Double, key=name) for name in ("xmin", "ymin", "xmax", "ymax")),
    Column("area", Double),
    *(Column(name, Double) for name in ("cx", "cy", "w", "h", "angle")),
    Column("prompt", CODE_POINTS),
    Column("answer", CODE_POINTS),
    Column("text", CODE_POINTS),
    Column("start", Integer),
    Column("end", Integer),
    Column("value", Numeric),
    Index("prediction_model_label_score_idx", "model", "label", "score", "uid"),
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
)
