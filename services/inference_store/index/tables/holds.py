"""Legal holds: what they keep, how they came to be so, and what they keep from erasures."""

from sqlalchemy import Boolean, Column, DateTime, Index, Integer, Table, text
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA

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
    Column("data_storage_key", CODE_POINTS),
    Column("response_storage_key", CODE_POINTS),
    Column("metadata_storage_key", CODE_POINTS),
    Column("sidecar_storage_key", CODE_POINTS),
    # when it had been claimed before the hold: then some of its objects may be gone
    Column("claimed_at", DateTime(timezone=True)),
    Index("erasure_held_hold_idx", "hold", "hold_revision"),
    # whether an object is kept for what is not stored
    *(
        Index(f"erasure_held_{name}_idx", f"{name}_storage_key")
        for name in ("data", "response", "metadata", "sidecar")
    ),
)
