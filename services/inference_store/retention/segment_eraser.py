"""Erases what a batch has in segments that stay: rewrites each in place, some at a time.

For each segment: read it, and see that it is the one that is known · note the hash of what is
about to be written, in a transaction of its own · write it, delete its older versions, read the
ranges back. After a crash the marks are there, and all is done again: what is overwritten already
stays as it is.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.erasure import segment_claims
from inference_store.erasure.segment_claims import SegmentClaim
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import member_of
from inference_store.objects import READ_AGAIN, DeleteFault, Overwritten
from inference_store.platform.failpoints import failpoint

from .leader import Leader

# Segments, and their bytes, that are in memory at a time.
_AT_ONCE: Final = 64
_BYTES: Final = 32 * 1024 * 1024
_SIZE: Final = 8 * 1024 * 1024
_TRIES: Final = 3


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


async def rewrite_segments(leader: Leader, claims: Sequence[SegmentClaim]) -> ErasedSegments:
    """Rewrite segments, those of other erasers left out. Repeatable. Raises
    ObjectStoreUnavailable."""
    erased = ErasedSegments()
    for some in _split(claims):
        await leader.check.confirm_leading()
        await _rewrite(leader, some, erased)
    if claims:
        failpoint("retention.rewrite.after")
    return erased


def _split(claims: Sequence[SegmentClaim]) -> Iterator[Sequence[SegmentClaim]]:
    some: list[SegmentClaim] = []
    size = 0
    for claim in claims:
        bytes = claim.rewrite.size or _SIZE
        if some and (len(some) == _AT_ONCE or size + bytes > _BYTES):
            yield some
            some, size = [], 0
        some.append(claim)
        size += bytes
    if some:
        yield some


async def _rewrite(leader: Leader, claims: Sequence[SegmentClaim], erased: ErasedSegments) -> None:
    waiting = claims
    for _ in range(_TRIES):
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
