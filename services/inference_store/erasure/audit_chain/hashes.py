"""What is hashed, so that anybody can do it again: SHA-256 over JSON with sorted keys."""

import json
from datetime import UTC
from hashlib import sha256
from typing import Any
from uuid import UUID

from sqlalchemy import Text, cast

from inference_store.index.tables import audit

GENESIS = bytes(32)
"""What stands for the hash before the first entry."""
# As Postgres writes JSONB: the same for the same value, whatever reads it.
DETAIL = cast(audit.c.detail, Text).label("written")
FIXED = tuple(
    audit.c[name] for name in ("id", "at", "actor", "client", "action", "model", "model_id")
)


def of_values(salt: bytes, uid: UUID | None, written: str) -> bytes:
    """Over an entry's values; without the salt nobody can try what they were."""
    return sha256(salt + _json([None if uid is None else str(uid), written])).digest()


def of_link(before: bytes, number: int, row: Any, values_hash: bytes) -> bytes:
    """Over the link before, its number, and the entry."""
    fixed = {column.name: getattr(row, column.name) for column in FIXED}
    fixed["at"] = row.at.astimezone(UTC).isoformat()
    said = {**fixed, "number": number, "values": values_hash.hex()}
    return sha256(before + _json(said)).digest()


def of_checkpoint(signed: dict[str, Any]) -> bytes:
    """Over a signed checkpoint: what the next one names."""
    return sha256(_json(signed)).digest()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
