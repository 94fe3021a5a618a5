"""The identity of an inference: a UUIDv8 (RFC 9562) computed from its event.

    48 bits  Unix milliseconds of request_received_at
     4 bits  version 8
    12 bits  microseconds within that millisecond
     2 bits  variant
    62 bits  hash of the length-prefixed model id, inference id, and the (bucket, key) of
             data and response

The same event gives the same uid however often it arrives, and uids sort by time.
"""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HASH_BITS = 62
_HASH_MASK = (1 << _HASH_BITS) - 1
LOWEST = datetime(2000, 1, 1, tzinfo=UTC)
HIGHEST = datetime(9999, 12, 31, tzinfo=UTC)


def _time_bits(at: datetime) -> int:
    milliseconds, microseconds = divmod((at - _EPOCH) // _MICROSECOND, 1000)
    return (milliseconds << 80) | (8 << 76) | (microseconds << 64) | (2 << _HASH_BITS)


def uid_of(received_at: datetime, *identity: str) -> UUID:
    """Return the uid of an event received at that time; `identity` is hashed with lengths."""
    digest = blake2b(digest_size=8)
    for part in identity:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    tail = int.from_bytes(digest.digest(), "big") & _HASH_MASK
    return UUID(int=_time_bits(received_at) | tail)


def uid_floor(at: datetime) -> UUID:
    """Return the smallest uid of an instant: `received_at >= at` is `uid >= uid_floor(at)`."""
    return UUID(int=_time_bits(min(max(at.astimezone(UTC), _EPOCH), HIGHEST)))


def received_at_of(uid: UUID) -> datetime:
    """Return the instant that a uid was made for, to the microsecond."""
    milliseconds = uid.int >> 80
    microseconds = (uid.int >> 64) & 0xFFF
    return _EPOCH + timedelta(milliseconds=milliseconds, microseconds=microseconds)
