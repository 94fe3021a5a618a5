"""Copies what is left of nearly empty segments to new ones; see erasure/segment_copies.py."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import structlog

from inference_store.erasure import segment_copies
from inference_store.erasure.segment_copies import SegmentCopy, Unmovable
from inference_store.inference.errors import AccessDenied, BlobMissing
from inference_store.inference.events import parse_stored
from inference_store.inference.layout import segment_of_key
from inference_store.inference.tar import (
    BLOCK,
    CONTENT_TYPE,
    END,
    ERASED,
    SUFFIXES,
    make_header,
    pad,
)
from inference_store.objects import Contents
from inference_store.platform.failpoints import failpoint

from .batch_eraser import format_failures, merge_faults
from .leader import ACTOR, Leader

_SEGMENTS: Final = 200
_SECONDS: Final = 30.0
"""Of copying in a schedule."""
_SETTLED: Final = timedelta(days=30)
"""What has lived so long is kept for long, as a rule; a younger segment may soon go whole."""
_ROUND_SECONDS: Final = 7 * 86_400.0
"""From the end of a round to the next one: what has to stay is read once in each."""
_log = structlog.get_logger()


async def copy_sparse(leader: Leader) -> None:
    """Copy some of the segments of which little is left, each schedule the next ones of a round."""
    if (now := time.monotonic()) < leader.copying_from:
        return
    async with leader.engine.connect() as connection:
        rows = await segment_copies.find_sparse(connection, after=leader.copied_to, limit=_SEGMENTS)
    for row in rows:
        if time.monotonic() > now + _SECONDS:
            return
        leader.copied_to = row.model, row.storage_key
        await leader.check.confirm_step()
        try:
            await _copy(leader, row)
        except (Unmovable, BlobMissing, AccessDenied, ValueError) as why:
            _log.debug("segment stays", action="segment_stays", error=f"{row.storage_key}: {why!r}")
    if len(rows) < _SEGMENTS:
        leader.copied_to, leader.copying_from = (0, ""), now + _ROUND_SECONDS


async def _copy(leader: Leader, row: Any) -> None:
    """Raises Unmovable; BlobMissing, ValueError and AccessDenied if it cannot be read or written;
    ObjectStoreUnavailable."""
    old, blobs = parse_stored(row.storage_key), leader.blobs
    names = segment_of_key(old.key)
    is_young = names is None or names[1] > datetime.now(UTC) - _SETTLED
    if names is None or is_young or old.bucket not in blobs.buckets.allowed:
        raise Unmovable
    read = await asyncio.to_thread(blobs.read_segment, old, lambda entry: entry.name != ERASED)
    if read.hash not in {*row.hashes, row.last_hash, row.next_hash}:
        raise Unmovable
    new = segment_copies.choose_key(old, names[2])
    tar, members = _write_copy(read)
    copy = SegmentCopy(row.model, old, new, members, len(tar), sha256(tar).hexdigest())
    async with leader.engine.begin() as connection:
        await segment_copies.note(connection, row, copy, maker=leader.id)
    failpoint("copy.noted")
    await asyncio.to_thread(blobs.put, new, tar, content_type=CONTENT_TYPE)
    failpoint("copy.put")
    body = partial(segment_copies.describe, copy=copy, maker=leader.id)
    await leader.ledger.write("segment_copied", body, actor=ACTOR)
    failpoint("copy.moved")
    about = {"old": row.storage_key, "new": str(new), "bytes": read.size - copy.bytes}
    _log.info("segment copied", action="segment_copied", **about)


def _write_copy(read: Contents) -> tuple[bytes, list[tuple[UUID, int, int, int]]]:
    """Return the bytes of a copy, and its members. Raises ValueError if an entry is no capture's;
    Unmovable if its metadata are elsewhere: a rebuild would look for the rest where it was."""
    parts: list[bytes] = []
    members: list[tuple[UUID, int, int, int]] = []
    end = 0
    left = [(entry, data) for entry, data in read.entries if data is not None]
    for entry, data in left:
        capture, padding = UUID(entry.name.partition(".")[0]), pad(entry.size)
        parts += (make_header(entry.name, entry.size, (capture.int >> 80) // 1000), data, padding)
        members.append((capture, entry.offset, entry.size, end + BLOCK))
        end += BLOCK + entry.size + len(padding)
    names = {entry.name for entry, _ in left}
    if not names or any(f"{capture}{SUFFIXES['metadata']}" not in names for capture, *_ in members):
        raise Unmovable
    return b"".join((*parts, END)), members


async def delete_other_copies(leader: Leader) -> None:
    """Delete the old objects of segments that were copied, and copies that did not end."""
    async with leader.engine.connect() as connection:
        rows = await segment_copies.list_due(connection, limit=_SEGMENTS)
    if unended := [row.other_copy for row in rows if row.leased_by is not None]:
        await leader.ledger.write("segment_copies_given_up", {"copies": unended}, actor=ACTOR)
        return  # what is due now is another question
    if not rows:
        return
    await leader.check.confirm_step()
    keys = [parse_stored(row.other_copy) for row in rows]
    faults = await asyncio.to_thread(leader.blobs.delete_objects, keys)
    failed = merge_faults(faults, keys, await asyncio.to_thread(leader.blobs.still_there, keys))
    failpoint("copy.deleted")
    left = {str(fault.key) for fault in failed}
    async with leader.engine.begin() as connection:
        await segment_copies.forget(connection, set(map(str, keys)) - left, left)
    if left:
        _log.warning("a segment stays", action="copy_stays", error=format_failures(failed))
