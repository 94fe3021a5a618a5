"""Certificates of erasures, and the lists of what they erased."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    func,
)
from sqlalchemy.dialects.postgresql import UUID

from .metadata import CODE_POINTS, METADATA


def _now(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


# The chain: what was signed, as it lies in the bucket too.
certificate = Table(
    "certificate",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # 'certificate' or 'certificate_key'
    Column("kind", CODE_POINTS, nullable=False),
    # NULL: of a key
    Column("erasure", UUID(as_uuid=True)),
    # NULL: of several models, of one that is forgotten, or of a key
    Column("model", Integer),
    Column("issued_at", DateTime(timezone=True), nullable=False),
    Column("signed", CODE_POINTS, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("certificate_erasure_idx", "erasure"),
    Index("certificate_model_number_idx", "model", "number"),
)

# What went, batch by batch, as each batch's own transaction tells it. Random bytes: not compressed.
erased_leaves = Table(
    "erased_leaves",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("erasure", UUID(as_uuid=True), nullable=False),
    # NULL: not certified yet
    Column("certificate", BigInteger),
    # which key hashed them
    Column("hashed_by", CODE_POINTS, nullable=False),
    Column("inferences", BigInteger, nullable=False),
    Column("objects", BigInteger, nullable=False),
    Column("oldest", DateTime(timezone=True)),
    Column("newest", DateTime(timezone=True)),
    # their partitions are dropped afterwards: until then rows are left
    Column("span", CODE_POINTS),
    _now("recorded_at"),
    Column("leaves", LargeBinary, nullable=False),
    Index("erased_leaves_erasure_idx", "erasure", "id"),
    Index("erased_leaves_certificate_idx", "certificate", "id"),
)
