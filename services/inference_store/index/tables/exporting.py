"""Export jobs, the lists of their members, who downloaded them, and what erasures took of them."""

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
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from .metadata import CODE_POINTS, METADATA


def _now(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


def _count(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


export_job = Table(
    "export_job",
    METADATA,
    Column("id", UUID(as_uuid=True), primary_key=True),
    Column("model", Integer, nullable=False),
    # 'parquet', 'arrow', ...
    Column("format", CODE_POINTS, nullable=False),
    # {"filter", "saved", "since", "until", "include", "blobs"}; after an erasure took the filter's
    # values, both forms of it are null
    Column("document", JSONB, nullable=False),
    # 'pending', 'listing', 'writing', 'done', 'stale': an erasure deleted parts; 'failed',
    # 'cancelling', 'cancelled', 'expired'
    Column("state", CODE_POINTS, nullable=False),
    Column("requested_by", CODE_POINTS, nullable=False),
    _now("requested_at"),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    # from then on its parts are deleted
    Column("expires_at", DateTime(timezone=True), nullable=False),
    # the last uid that was looked at for the lists; NULL: none
    Column("listed_to", UUID(as_uuid=True)),
    *(_count(name) for name in ("members", "lists", "written", "rows", "bytes", "gone", "missing")),
    # of parts that erasures deleted
    _count("parts_deleted"),
    _count("inferences_deleted"),
    # why it waits or has failed
    Column("error", CODE_POINTS),
    # when it is tried again after an error
    Column("retry_at", DateTime(timezone=True)),
    # the erasure that took the filter
    Column("erased_by", UUID(as_uuid=True)),
    Index("export_job_requested_at_idx", "requested_at"),
    Index("export_job_model_requested_at_idx", "model", "requested_at"),
)

# A list of members is a part: what it names is read and written as one object. The lists stay as
# long as a copy may: what an erasure takes is looked up in them.
export_part = Table(
    "export_part",
    METADATA,
    Column("export", UUID(as_uuid=True), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("model", Integer, nullable=False),
    Column("first", UUID(as_uuid=True), nullable=False),
    Column("last", UUID(as_uuid=True), nullable=False),
    # 16 bytes each, sorted, without those that were erased
    Column("uids", LargeBinary, nullable=False),
    # 'listed'; 'writing': its object may be in the bucket; 'written'; 'stale': an erasure took
    # members, and the object is deleted before it ends; 'removed': with the export
    Column("state", CODE_POINTS, nullable=False),
    # NULL: there is no object
    Column("storage_key", CODE_POINTS),
    # that the object has, or had before it was deleted
    Column("rows", BigInteger),
    Column("bytes", BigInteger),
    Column("sha256", LargeBinary),
    Column("written_at", DateTime(timezone=True)),
    # members that were erased before the object was written
    _count("gone"),
    # blobs that the object should have and has not
    _count("missing"),
    Index("export_part_model_idx", "model", "first", "last"),
)

# Who was given links to an export's parts.
export_download = Table(
    "export_download",
    METADATA,
    Column("export", UUID(as_uuid=True), primary_key=True),
    Column("actor", CODE_POINTS, primary_key=True),
    _now("first_at"),
    _now("last_at"),
    _count("parts"),
)

# What erasures took of exports, a row for each batch and part.
export_erased = Table(
    "export_erased",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("export", UUID(as_uuid=True), nullable=False),
    Column("part", Integer, nullable=False),
    Column("erasure", UUID(as_uuid=True), nullable=False),
    # what went: 'inference', 'input' or 'response'
    Column("scope", CODE_POINTS, nullable=False),
    Column("inferences", BigInteger, nullable=False),
    # 16 bytes each; NULL: their time is over, and only the hashes are left
    Column("uids", LargeBinary),
    # as entries of a certificate's list: a letter and a keyed hash; NULL: there was no key
    Column("leaves", LargeBinary),
    Column("hashed_by", CODE_POINTS),
    # the object that had them; NULL: there was none
    Column("storage_key", CODE_POINTS),
    _now("erased_at"),
    # when the part's object was seen to be gone in every version, and its list is without them
    Column("deleted_at", DateTime(timezone=True)),
    Index("export_erased_export_idx", "export", "id"),
    Index("export_erased_erasure_idx", "erasure"),
)
