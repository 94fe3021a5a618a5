"""Reconciliations: what was found where the bucket and the index do not say the same."""

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Index, Integer, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA

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
    Column("requested_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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

_OWNER = "reconciliation.id"

reconciliation_finding = Table(
    "reconciliation_finding",
    METADATA,
    Column(
        "reconciliation",
        UUID(as_uuid=True),
        ForeignKey(_OWNER, name="reconciliation_finding_fkey", ondelete="CASCADE"),
        primary_key=True,
    ),
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
    Column(
        "reconciliation",
        UUID(as_uuid=True),
        ForeignKey(_OWNER, name="reconciliation_named_fkey", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("storage_key", CODE_POINTS, primary_key=True),
)
