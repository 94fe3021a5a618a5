"""Access: the keys, the sessions of browsers, and the audit of what was done."""

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
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, UUID

from .metadata import CODE_POINTS, METADATA

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
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # exact to a minute
    Column("used_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
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
