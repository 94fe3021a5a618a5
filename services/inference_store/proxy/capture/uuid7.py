"""UUIDv7 (RFC 9562): they sort by the time of their creation."""

import os
import time
from uuid import UUID


def uuid7() -> UUID:
    """Return a new UUID: 48 bits of Unix milliseconds, 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    return UUID(
        int=(milliseconds & (1 << 48) - 1) << 80
        | 7 << 76
        | (random >> 68) << 64
        | 2 << 62
        | random & (1 << 62) - 1
    )
