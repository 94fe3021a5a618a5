"""The lists of members: uids of 16 bytes each, sorted, one after the other."""

from collections.abc import Iterable, Iterator, Set
from typing import Final
from uuid import UUID

UID_BYTES: Final = 16


def pack_uids(uids: Iterable[UUID]) -> bytes:
    """Return the list of these uids, sorted."""
    return b"".join(sorted(uid.bytes for uid in uids))


def read_uids(uid_list: bytes) -> Iterator[UUID]:
    """Yield the uids of a list. Raises ValueError if the last one is incomplete."""
    return (UUID(bytes=packed) for packed in _split(uid_list))


def take_uids(uid_list: bytes, doomed: Set[bytes]) -> tuple[bytes, bytes]:
    """Split a list in two: the uids that stay, and those among `doomed` (16 bytes each)."""
    uids = list(_split(uid_list))
    rest = b"".join(packed for packed in uids if packed not in doomed)
    return rest, b"".join(packed for packed in uids if packed in doomed)


def _split(uid_list: bytes) -> Iterator[bytes]:
    if len(uid_list) % UID_BYTES:
        raise ValueError(f"{len(uid_list)} bytes are no whole number of uids")
    return (uid_list[at : at + UID_BYTES] for at in range(0, len(uid_list), UID_BYTES))
