"""The canonical form of JSON, so that a hash covers the bytes that everybody reads."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any


def canonical(value: Any) -> str:
    """Return JSON with sorted names, no spaces, and ASCII alone. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def compute_hash(value: Any, *, after: bytes = b"") -> bytes:
    """Return the SHA-256 over `after` (a salt, or the hash of the entry before) and a value."""
    return sha256(after + canonical(value).encode()).digest()


def format_instant(at: datetime | None) -> str | None:
    """Return an instant by RFC 3339, in UTC, with microseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
