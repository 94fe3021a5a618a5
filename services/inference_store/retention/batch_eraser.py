"""Erases one claimed batch: deletes its objects, verifies that, and deletes its rows."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from inference_store.erasure import rows, segment_claims
from inference_store.erasure.erased_lists import record_erased
from inference_store.erasure.pending_deletions import PendingDeletion, Position
from inference_store.erasure.progress import Erasure, add_erased, advance_erasure, record_blocked
from inference_store.erasure.rows import Moves
from inference_store.erasure.runs import count_failure, find_reason
from inference_store.erasure.segment_claims import (
    LEASE_SECONDS,
    LEASED,
    SegmentClaim,
    list_places,
)
from inference_store.export.erased import record_batch
from inference_store.index import key_registry, sidecars
from inference_store.index.sidecars import CONTENT_TYPE, Identity, by_model, without_request
from inference_store.inference.errors import AccessDenied, BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.inference.events import FIELDS, StorageKey, parse_stored
from inference_store.inference.layout import member_of
from inference_store.objects import (
    NOT_ALLOWED,
    READ_AGAIN,
    Blobs,
    Deleted,
    DeleteFault,
    Listed,
    Overwritten,
)
from inference_store.platform.failpoints import failpoint, failpoint_of_task
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.replay.items import forget_members
from inference_store.truth.awaiting import drop_of_data

from .leader import Leader


@dataclass(frozen=True, slots=True)
class Batch:
    """The marks that may be erased now because no hold protects them, and the deletable objects."""

    page: Sequence[PendingDeletion]
    doomed: frozenset[str]
    # the last mark that was checked; None: there are no more
    last: Position | None
    # whether a hold protects some of the checked marks
    has_spared: bool = False
    # metadata blobs that are written to a new key, because other inferences use the old one
    moves: Moves = field(default_factory=dict)
    # what the marks have in segments, and faults for those that another eraser has
    segments: Sequence[SegmentClaim] = ()
    busy: Sequence[DeleteFault] = ()

    @property
    def identities(self) -> set[Identity]:
        """The inferences that the marks belong to."""
        return {(mark.model, mark.uid) for mark in self.page}


@dataclass(slots=True)
class ErasedSegments:
    """What became of segments: those that were `rewritten`, and faults for others."""

    rewritten: dict[StorageKey, Overwritten] = field(default_factory=dict)
    faults: list[DeleteFault] = field(default_factory=list)
    bytes: int = 0

    def has_erased(self, key: str) -> bool:
        """Return whether a storage key was erased: of what was rewritten, only entries that were
        named as they had to be."""
        place = parse_stored(key)
        if (member := member_of(place.key)) is None:
            return True
        segment = self.rewritten.get(StorageKey(place.bucket, member.segment))
        if segment is None or segment.is_gone or segment.is_empty:
            return True
        return (member.offset, member.length) in segment.erased


# Each batch reads the counts of keys that are not folded.
_BATCHES_UNFOLDED: Final = 100
NOTHING: Final = Batch((), frozenset(), None)


async def erase_batch(
    leader: Leader, erasure: Erasure, batch: Batch, *, whole_span: bool = False
) -> str | None:
    """Delete a batch, verify that it is gone, and forget it; return the failures as a text."""
    if not batch.page:
        return None
    try:
        return await _erase_batch(leader, erasure, batch, whole_span=whole_span)
    finally:
        leased = leader.end_lease(batch.segments)
        if leased and sys.exception() is None:
            async with leader.engine.begin() as connection:
                await segment_claims.release(connection, leased, eraser=leader.id)


async def _erase_batch(
    leader: Leader, erasure: Erasure, batch: Batch, *, whole_span: bool
) -> str | None:
    async with _list_objects(leader, batch) as listed:
        deleted, faults, segments = await erase_objects(leader, erasure, batch, listed)
    remaining = {fault.key for fault in faults}
    done: list[PendingDeletion] = []
    stay: list[PendingDeletion] = []
    for mark in batch.page:
        (done if remaining.isdisjoint(list_objects_of(mark)) else stay).append(mark)
    # inferences after one that stays are recorded one by one
    whole_span = whole_span and not stay and not batch.has_spared
    async with leader.forgetting:
        with stage(STEP_SECONDS, "forget"):
            await failpoint_of_task("retention.row_delete.before")
            if done:
                # the deleted objects of inferences that stay are counted when those are erased
                erased = {key for key in batch.doomed if segments.has_erased(key)}
                objects = len(erased - {key for mark in stay for key in mark.doomed})
                claims = [c for c in batch.segments if c.rewrite.place not in remaining]
                batch = replace(batch, doomed=frozenset(erased), segments=claims)
                about = (batch, done, deleted, segments, objects)
                await _forget(leader, erasure, *about, whole_span)
            else:
                # the inferences wait for their other objects; the deleted ones are counted
                async with leader.engine.begin() as connection:
                    versions, size = deleted.versions, deleted.bytes
                    await add_erased(connection, erasure.id, versions=versions, bytes=size)
        gone = [key for mark in done for key in list_objects_of(mark)]
        await record_failures(leader, erasure, faults, gone)
        leader.batches_erased += 1
        if leader.batches_erased % _BATCHES_UNFOLDED == 0:
            await leader.repeat(key_registry.fold)
    return format_failures(faults)


@asynccontextmanager
async def _list_objects(leader: Leader, batch: Batch) -> AsyncIterator[Listed]:
    """List the versions to delete, in buckets that are versioned."""
    async with leader.listing:
        keys = _list_keys(batch)
        listed = await asyncio.to_thread(leader.blobs.list_versions, keys) if keys else {}
        # before the next batch is listed, so that the order stays
        await leader.deleting.acquire()
    try:
        yield listed
    finally:
        leader.deleting.release()


async def _forget(  # noqa: PLR0917
    leader: Leader,
    erasure: Erasure,
    batch: Batch,
    done: Sequence[PendingDeletion],
    deleted: Deleted,
    segments: ErasedSegments,
    objects: int,
    whole_span: bool,
) -> None:
    async with leader.engine.begin() as connection:
        await advance_erasure(connection, erasure.id, "deleting_rows")
    async with leader.engine.begin() as connection:
        if erasure.scope == "inference":
            for model, uids in by_model((mark.model, mark.uid) for mark in done):
                await drop_of_data(connection, model, uids)
        erased = await rows.delete_rows(
            connection,
            erasure,
            done,
            objects=objects,
            versions=deleted.versions,
            bytes=deleted.bytes,
            whole_span=whole_span,
        )
        await rows.repoint_rows(connection, done, batch.moves)
        await segment_claims.forget(connection, batch.segments, segments.rewritten)
        if leader.certifier is not None:
            key, doomed = leader.certifier.key, batch.doomed
            await record_erased(connection, key, erasure, done, doomed, whole_span=whole_span)
        # in the transaction that deletes their rows, of whole partitions too
        if erasure.scope != "truth":
            identities = [(mark.model, mark.uid) for mark in done]
            await record_batch(connection, erasure.id, erasure.scope, identities)
            if erasure.scope == "inference":
                is_requested = erasure.cause == "request"
                await forget_members(connection, identities, is_requested=is_requested)
    failpoint("retention.row_delete.after")
    ERASED.labels(erasure.scope).inc(erased)
    OBJECTS_DELETED.inc(objects)


async def erase_objects(
    leader: Leader, erasure: Erasure, batch: Batch, listed: Listed | None
) -> tuple[Deleted, list[DeleteFault], ErasedSegments]:
    """Delete the objects and verify it; return the deleted ones, faults for the others, and what
    became of segments that stay."""
    keys, blobs = _list_keys(batch), leader.blobs
    if not keys and not batch.segments and erasure.scope != "input":
        return Deleted(), [*batch.busy], ErasedSegments()
    failpoint("retention.object_delete.before")
    with stage(STEP_SECONDS, "delete"):
        deleted = await asyncio.to_thread(blobs.delete_objects, keys, listed)
        if erasure.scope == "input":
            deleted += await asyncio.to_thread(remove_requests, blobs, batch.page, batch.moves)
        kept = {fault.key for fault in deleted}
        claims = [claim.without(kept) for claim in batch.segments if not claim.whole]
        segments = await rewrite_segments(leader, claims)
        deleted.bytes += segments.bytes
    failpoint("retention.object_delete.after")
    async with leader.engine.begin() as connection:
        await advance_erasure(connection, erasure.id, "verifying")
    await failpoint_of_task("retention.verify.before")
    with stage(STEP_SECONDS, "verify"):
        remaining = await asyncio.to_thread(blobs.still_there, keys)
    failpoint("retention.verify.after")
    faults = merge_faults(deleted, keys, remaining)
    return deleted, [*batch.busy, *faults, *segments.faults], segments


def _list_keys(batch: Batch) -> list[StorageKey]:
    """List the objects to delete: of segments those that go whole."""
    keys = [parse_stored(key) for key in sorted(batch.doomed)]
    whole = [claim.rewrite.place for claim in batch.segments if claim.whole]
    return [*(key for key in keys if member_of(key.key) is None), *whole]


# Locks are looked up for at most this many objects of a batch.
_ASKED = 100
_UNSEEN = "deleted without a fault, and listed still"


def list_objects_of(mark: PendingDeletion) -> list[StorageKey]:
    """List every object of a mark; if one of them could not be erased, the mark stays."""
    keys: set[str | None] = set(mark.doomed)
    if mark.scope == "input":
        keys |= {mark.metadata, mark.sidecar}
    return [*(parse_stored(key) for key in keys if key is not None), *list_places(mark)]


def merge_faults(
    faults: Iterable[DeleteFault], keys: Sequence[StorageKey], listed: Iterable[StorageKey]
) -> list[DeleteFault]:
    """Return faults for objects that are still listed, whatever the delete returned, and for failed
    rewrites."""
    fault_by_key = {fault.key: fault for fault in faults}
    deleted = set(keys)
    rewriting = [fault for key, fault in fault_by_key.items() if key not in deleted]
    return rewriting + [
        fault_by_key.get(key) or DeleteFault(key, "StillThere", _UNSEEN) for key in listed
    ]


def format_failures(faults: Sequence[DeleteFault]) -> str | None:
    """Describe the failures for people, and count every fault."""
    if not faults:
        return None
    for fault in faults:
        count_failure(find_reason(fault.code, fault.message))
    first = faults[0]
    others = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{first.key}{others}: {first.code} {first.message}".strip()


async def record_failures(
    leader: Leader, erasure: Erasure, faults: Sequence[DeleteFault], gone: Iterable[StorageKey]
) -> None:
    """Store the objects that block the erasure, and when their locks end; remove deleted ones."""
    if not faults and erasure.state != "failed":
        return
    locked = [fault.key for fault in faults[:_ASKED] if fault.held]
    ends = await asyncio.to_thread(lambda: {k: leader.blobs.locked_until(k) for k in locked})
    lapse = datetime.now(UTC) + timedelta(seconds=LEASE_SECONDS)
    ends |= {fault.key: lapse for fault in faults if fault.code == LEASED}
    blocked = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
    failpoint("retention.note.before")
    async with leader.engine.begin() as connection:
        await record_blocked(connection, erasure.id, blocked, [str(key) for key in gone])
    failpoint("retention.note.after")


# Removes the request from objects that a scope-input erasure keeps: metadata blobs of our own
# producers, and sidecars.
#
# Such a metadata blob is a JSON object with a member `request`; it is written again without it.
# Only keys that name the inference's own capture are changed: other blobs may be shared, and
# contain no request. If other inferences use the blob too, it is written to a new key (see
# erasure/rows.py). A sidecar contains the event as it arrived, with all data of
# its producer.

_LIMIT_BYTES = 64 * 1024 * 1024
_THREADS = 8
# Returns the blob without the request; None: the whole blob must be deleted.
_Strip = Callable[[bytes], bytes | None]


def remove_requests(
    blobs: Blobs, page: Sequence[PendingDeletion], moves: Moves
) -> list[DeleteFault]:
    """Rewrite metadata blobs and sidecars of these marks.

    Repeatable; blocks. Raises ObjectStoreUnavailable.
    """
    rests = [rewrite for mark in page for rewrite in _list_rewrites(mark, moves)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rewrite") as executor:
        results = executor.map(lambda rewrite: _remove_request(blobs, *rewrite), rests)
        return [fault for faults in results for fault in faults]


def _list_rewrites(
    mark: PendingDeletion, moves: Moves
) -> list[tuple[StorageKey, StorageKey, _Strip]]:
    rewrites: list[tuple[StorageKey, StorageKey, _Strip]] = []
    if mark.metadata is not None and (mark.owns(mark.metadata) or mark.has_edited(mark.metadata)):
        to = moves.get(mark.metadata, mark.metadata)
        if to is not None:
            rewrites.append((parse_stored(mark.metadata), parse_stored(to), _strip_metadata))
    if mark.sidecar is not None:
        key = parse_stored(mark.sidecar)
        rewrites.append((key, key, _strip_sidecar))
    return rewrites


def _remove_request(
    blobs: Blobs, key: StorageKey, to: StorageKey, strip: _Strip
) -> list[DeleteFault]:
    """Rewrite one object; if access to it is denied, return a fault, and the others go on."""
    if key.bucket not in blobs.buckets.allowed:
        return [DeleteFault(key, "BucketNotAllowed", NOT_ALLOWED)]
    try:
        return _rewrite(blobs, key, to, strip)
    except AccessDenied as exc:
        return [DeleteFault(key, "AccessDenied", str(exc))]


def _rewrite(blobs: Blobs, key: StorageKey, to: StorageKey, strip: _Strip) -> list[DeleteFault]:
    """Write the rest in the place of an object, or to another key: then the old one stays, because
    other inferences use it."""
    try:
        rest = strip(blobs.get(key, limit=_LIMIT_BYTES))
    except (BlobTooLarge, BlobUnreadable) as exc:
        reason = f"it cannot be read: {exc}"
        return [DeleteFault(key, "NotRewritten", reason) for key in blobs.still_there([key])]
    except BlobMissing:
        # Versions behind a delete marker still contain the request, and cannot be rewritten.
        return blobs.delete_hidden(key) if to == key else []
    if rest is None:
        deleted = blobs.delete_objects([key])
        return deleted or merge_faults((), [key], blobs.still_there([key]))
    # Also if it has no request: a crash may have left the older version.
    faults = blobs.replace(to, rest, content_type=CONTENT_TYPE)
    return [replace(fault, key=key) for fault in faults]


def _strip_metadata(blob: bytes) -> bytes:
    rest = without_request(blob)
    return blob if rest is None else rest


def _strip_sidecar(blob: bytes) -> bytes | None:
    """Return a sidecar without the request; None if it cannot be read, and so may hold one."""
    try:
        contents = sidecars.without_input(sidecars.decode(blob), known=FIELDS)
    except ValueError:
        return None
    return sidecars.encode(contents)


# Erases what a batch has in segments that stay: rewrites each in place, some at a time.
#
# For each segment: read it, and see that it is the one that is known · note the hash of what is
# about to be written, in a transaction of its own · write it, delete its older versions, read the
# ranges back. After a crash the marks are there, and all is done again: what is overwritten already
# stays as it is.

# Segments, and their bytes, that are in memory at a time.
_SEGMENTS: Final = 64
_SEGMENT_BYTES: Final = 32 * 1024 * 1024
_USUAL_BYTES: Final = 8 * 1024 * 1024
_SEGMENT_TRIES: Final = 3


async def rewrite_segments(leader: Leader, claims: Sequence[SegmentClaim]) -> ErasedSegments:
    """Rewrite segments, those of other erasers left out. Repeatable. Raises
    ObjectStoreUnavailable."""
    erased = ErasedSegments()
    for some in _split(claims):
        await leader.check.confirm_leading()
        await _rewrite_some(leader, some, erased)
    if claims:
        failpoint("retention.rewrite.after")
    return erased


def _split(claims: Sequence[SegmentClaim]) -> Iterator[Sequence[SegmentClaim]]:
    some: list[SegmentClaim] = []
    size = 0
    for claim in claims:
        bytes = max(claim.rewrite.sizes, default=_USUAL_BYTES)
        if some and (len(some) == _SEGMENTS or size + bytes > _SEGMENT_BYTES):
            yield some
            some, size = [], 0
        some.append(claim)
        size += bytes
    if some:
        yield some


async def _rewrite_some(
    leader: Leader, claims: Sequence[SegmentClaim], erased: ErasedSegments
) -> None:
    waiting = claims
    for _ in range(_SEGMENT_TRIES):
        async with leader.engine.connect() as connection:
            # a batch before this one may just have written them
            waiting = await segment_claims.load_hashes(connection, waiting)
        read = await asyncio.to_thread(
            leader.blobs.read_segments, [claim.rewrite for claim in waiting]
        )
        await _note(leader, waiting, read)
        failpoint("retention.rewrite.noted")
        ready = [each for each in read if each.fault is None and not each.is_gone]
        await asyncio.to_thread(leader.blobs.write_segments, ready)
        again: list[SegmentClaim] = []
        for claim, each in zip(waiting, read, strict=True):
            if each.fault is not None and each.fault.code == READ_AGAIN:
                again.append(claim)
            elif each.fault is not None:
                erased.faults.append(each.fault)
            else:
                erased.rewritten[claim.rewrite.place] = each
                erased.bytes += each.bytes
            each.tar.clear()
        waiting = again
        if not waiting:
            return
    reason = "others write it again and again"
    erased.faults += [DeleteFault(claim.rewrite.place, READ_AGAIN, reason) for claim in waiting]


async def _note(
    leader: Leader, claims: Sequence[SegmentClaim], read: Sequence[Overwritten]
) -> None:
    noted = [
        (claim, each.hash, each.next_hash)
        for claim, each in zip(claims, read, strict=True)
        if each.fault is None and not each.is_gone
    ]
    async with leader.engine.begin() as connection:
        faults = await segment_claims.note_hashes(connection, noted, eraser=leader.id)
    by_place = {fault.key: fault for fault in faults}
    for each in read:
        each.fault = each.fault or by_place.get(each.rewrite.place)
