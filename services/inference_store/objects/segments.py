"""Reads members of segments (`inference/tar.py`), each with the header before it."""

from collections.abc import Sequence

from obstore import get_range, get_ranges
from obstore.exceptions import BaseError
from obstore.store import S3Store

from inference_store.inference.errors import BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Member
from inference_store.inference.tar import BLOCK, ERASED, read_header

from .transfers import translate_error


def get_member(store: S3Store, key: StorageKey, member: Member, limit: int) -> bytes:
    """Return a member's bytes. Raises BlobMissing, also if it was erased; BlobTooLarge,
    ObjectStoreUnavailable, AccessDenied."""
    refuse_large(key, member, limit)
    start = member.offset - BLOCK
    try:
        read = get_range(store, member.segment, start=start, length=BLOCK + member.length)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc
    return check_member(key, member, bytes(read))


def get_members(
    store: S3Store, segment: StorageKey, members: Sequence[Member]
) -> list[bytes | BlobMissing]:
    """Return members of one segment; near ones are read together. Raises as `get_member`."""
    starts = [member.offset - BLOCK for member in members]
    lengths = [BLOCK + member.length for member in members]
    try:
        reads = get_ranges(store, segment.key, starts=starts, lengths=lengths)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(segment, exc) from exc
    found: list[bytes | BlobMissing] = []
    for member, read in zip(members, reads, strict=True):
        try:
            found.append(check_member(segment, member, bytes(read)))
        except BlobMissing as missing:
            found.append(missing)
    return found


def refuse_large(key: StorageKey, member: Member, limit: int) -> None:
    """Raise BlobTooLarge if a member has more than `limit` bytes."""
    if member.length > limit:
        raise BlobTooLarge(f"{key} has {member.length} bytes; at most {limit} are read")


def check_member(key: StorageKey, member: Member, read: bytes) -> bytes:
    """Return the data behind a header that was read with it. Raises BlobMissing if the entry was
    erased, or is another than the key says; BlobUnreadable if there is none."""
    try:
        entry = read_header(read[:BLOCK], member.offset)
    except ValueError:
        raise BlobUnreadable(f"{key}: the segment has no member there") from None
    if entry.name == ERASED or entry.size != member.length:
        raise BlobMissing(f"{key} was erased, or is not there")
    return read[BLOCK:]
