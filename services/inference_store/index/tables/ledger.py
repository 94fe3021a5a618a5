"""The progress of this database in the ledger that lies in the bucket, and what waits for it."""

from sqlalchemy import BigInteger, Column, DateTime, Identity, Integer, Table, func, text
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA

# One row: the last entry whose effect is in this database. Number 0: none yet.
ledger_head = Table(
    "ledger_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", CODE_POINTS, nullable=False),
    # entries up to this one have forgotten what they said
    Column("forgotten", BigInteger, nullable=False, server_default=text("0")),
)

# Entries that writers of this database meant to put into the bucket: one that is found there
# and stands here is ours, however its writer ended. Gone once its number has been applied.
ledger_intent = Table(
    "ledger_intent",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", CODE_POINTS, primary_key=True),
    Column("intended_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# What took effect at once and is written to the bucket within seconds, in this order.
ledger_outbox = Table(
    "ledger_outbox",
    METADATA,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    # the body names it: the effect of the entry deletes it
    Column("id", UUID(as_uuid=True), nullable=False, unique=True),
    Column("kind", CODE_POINTS, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("actor", CODE_POINTS, nullable=False),
)
