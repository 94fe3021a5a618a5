"""Saved views: named questions about a model, of one caller or of the model's project."""

from sqlalchemy import Column, DateTime, Index, Integer, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA

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
    # 'grid', 'table', 'map', 'time'
    Column("view", CODE_POINTS, nullable=False),
    Column("columns", JSONB, nullable=False, server_default=text("'[]'")),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("created_by", CODE_POINTS, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("updated_by", CODE_POINTS, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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
