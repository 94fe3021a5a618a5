"""What is known of inferences: one parent and its side tables, all cut by time.

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
    Column("model_version", CODE_POINTS),
    Column("task_type", CODE_POINTS),
    Column("protocol", CODE_POINTS),
    Column("action", CODE_POINTS),
    Column("ok", Boolean),
    Column("http_status", Integer),
    Column("grpc_code", Integer),
    Column("error", CODE_POINTS),
    Column("trace_id", CODE_POINTS),
    Column("data_hash", CODE_POINTS),
    Column("data_size", BigInteger),
    Column("data_content_type", CODE_POINTS),
    Column("width", Integer),
    Column("height", Integer),
    Column("batch_index", Integer),
    Column("batch_size", Integer),
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
    Column("stored_bytes", BigInteger),
    Index("inference_model_inference_id_idx", "model", "inference_id", "uid"),
    Index(
        "inference_model_data_hash_idx",
        "model",
        "data_hash",
        "uid",
        postgresql_where=text("data_hash IS NOT NULL"),
    ),
    # what came of each, for counts and groups that need no row
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
