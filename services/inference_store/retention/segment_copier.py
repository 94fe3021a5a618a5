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
"""Segments of a schedule."""
_SETTLED: Final = timedelta(days=30)
"""What has lived so long is kept for long, as a rule; a younger segment may soon go whole."""
_ROUND_SECONDS: Final = 7 * 86_400.0
"""From the end of a round to the next one: what has to stay is read once in each."""
_START: Final = (0, "")
_log = structlog.get_logger()


async def copy_sparse(leader: Leader) -> None:
    """Copy some of the segments of which little is left, each schedule the next ones of a round."""
    if time.monotonic() < leader.copying_from:
        return
    async with leader.engine.connect() as connection:
        rows = await segment_copies.find_sparse(connection, after=leader.copied_to, limit=_SEGMENTS)
    if len(rows) < _SEGMENTS:
        leader.copied_to, leader.copying_from = _START, time.monotonic() + _ROUND_SECONDS
    else:
        leader.copied_to = rows[-1].model, rows[-1].storage_key
    for row in rows:
        names = segment_of_key(parse_stored(row.storage_key).key)
        if names is None or names[1] > datetime.now(UTC) - _SETTLED:
            continue
        await leader.check.confirm_step()
        try:
            await _copy(leader, row)
        except (Unmovable, BlobMissing, AccessDenied, ValueError) as why:
            reason = f"{type(why).__name__}: {why}"
            _log.debug("segment stays", action="segment_stays", key=row.storage_key, error=reason)


async def _copy(leader: Leader, row: Any) -> None:
    """Raises Unmovable; BlobMissing, ValueError and AccessDenied if it cannot be read or written;
    ObjectStoreUnavailable."""
    old = parse_stored(row.storage_key)
    read = await asyncio.to_thread(
        leader.blobs.read_segment, old, lambda entry: entry.name != ERASED
    )
    if read.hash not in {*row.hashes, row.last_hash, row.next_hash}:
        raise Unmovable("it is not what was written")
    copy, tar = _write_copy(row, read)
    async with leader.engine.begin() as connection:
        await segment_copies.describe(connection, copy, maker=None)
        await segment_copies.note(connection, row, copy.new, maker=leader.id)
    failpoint("copy.noted")
    await asyncio.to_thread(leader.blobs.put, copy.new, tar, content_type=CONTENT_TYPE)
    failpoint("copy.put")
    body = partial(segment_copies.describe, copy=copy, maker=leader.id)
    await leader.ledger.write("segment_copied", body, actor=ACTOR)
    failpoint("copy.moved")
    about = {"old": row.storage_key, "new": str(copy.new), "bytes": read.size - copy.bytes}
    _log.info("segment copied", action="segment_copied", **about)


def _write_copy(row: Any, read: Contents) -> tuple[SegmentCopy, bytes]:
    """Raises Unmovable if an entry is no capture's, or its metadata are elsewhere: a rebuild would
    look for the rest where it was."""
    parts: list[bytes] = []
    members: list[tuple[UUID, int, int, int]] = []
    captures: dict[UUID, set[str]] = {}
    end = 0
    for entry, data in read.entries:
        if data is None:
            continue
        capture = UUID(entry.name[:36])
        captures.setdefault(capture, set()).add(entry.name[36:])
        seconds, padding = capture.int >> 80, pad(entry.size)
        parts += (make_header(entry.name, entry.size, seconds // 1000), data, padding)
        members.append((capture, entry.offset, entry.size, end + BLOCK))
        end += BLOCK + entry.size + len(padding)
    if not captures or not all(SUFFIXES["metadata"] in names for names in captures.values()):
        raise Unmovable("metadata of it are elsewhere")
    tar = b"".join((*parts, END))
    old = parse_stored(row.storage_key)
    new = segment_copies.choose_key(old)
    return SegmentCopy(row.model, old, new, members, len(tar), sha256(tar).hexdigest()), tar


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
