"""The chain over the audit: a link for each entry, its head, and checkpoints."""

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, Integer, Table, func, text
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

from .metadata import CODE_POINTS, METADATA

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
    Column("number", BigInteger, nullable=False, server_default=text("0")),
    Column("hash", BYTEA, nullable=False),
    # the last number that retention has cut off
    Column("cut", BigInteger, nullable=False, server_default=text("0")),
)

audit_checkpoint = Table(
    "audit_checkpoint",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # 'cut': all up to this number was removed by age; 'head': the chain stood here
    Column("reason", CODE_POINTS, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", BYTEA, nullable=False),
    # what is signed, with its signature; NULL: there was no key
    Column("signed", JSONB),
    Index("audit_checkpoint_number_idx", "number"),
)
