"""The integers that stand for models, keys and labels, and the registration of a model."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    Table,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from .metadata import CODE_POINTS, METADATA

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
    Column("registered_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # rows of `inference` when its statistics were last gathered
    Column("analysed_rows", BigInteger, nullable=False, server_default=text("0")),
)
