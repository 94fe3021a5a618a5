"""The hashes of the audit's chain, so that anybody can compute them again."""

from datetime import UTC
from typing import Any
from uuid import UUID

from sqlalchemy import Text, cast

from inference_store.erasure.log.canonical import compute_hash
from inference_store.erasure.log.hash_chain import Link
from inference_store.index.tables import audit

GENESIS_HASH = bytes(32)
"""The hash before the first entry."""
# As Postgres writes JSONB: the same text for the same value.
DETAIL = cast(audit.c.detail, Text).label("written")
FIXED = tuple(
    audit.c[name] for name in ("id", "at", "actor", "client", "action", "model", "model_id")
)


def hash_values(salt: bytes, uid: UUID | None, written: str) -> bytes:
    """Return the hash of an entry's values; without the salt nobody can guess them."""
    return compute_hash([None if uid is None else str(uid), written], after=salt)


def hash_link(previous: Link, row: Any, values_hash: bytes) -> bytes:
    """Return the hash of the link after `previous`, which covers an entry."""
    fixed = {column.name: getattr(row, column.name) for column in FIXED}
    fixed["at"] = row.at.astimezone(UTC).isoformat()
    content = {**fixed, "number": previous.number + 1, "values": values_hash.hex()}
    return compute_hash(content, after=previous.hash)


def hash_checkpoint(signed: dict[str, Any]) -> bytes:
    """Return the hash of a signed checkpoint, which the next one names."""
    return compute_hash(signed)
