"""Erasure failures: the objects of a batch that could not be erased, stored and counted."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.verify.blocked_objects import record_blocked
from inference_store.erasure.verify.failure_reasons import count_failure, find_reason
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, DeleteFault
from inference_store.platform.failpoints import failpoint

# Locks are looked up for at most this many objects of a batch.
_ASKED = 100


def list_objects_of(mark: PendingDeletion) -> list[StorageKey]:
    """List every object of a mark; if one of them could not be erased, the mark stays."""
    keys: set[str | None] = set(mark.doomed)
    if mark.scope == "input":
        keys |= {mark.metadata, mark.sidecar}
    return [parse_stored(key) for key in keys if key is not None]


def merge_faults(
    faults: Iterable[DeleteFault], keys: Sequence[StorageKey], listed: Iterable[StorageKey]
) -> list[DeleteFault]:
    """Return faults for objects that are still listed, whatever the delete returned, and for failed
    rewrites."""
    fault_by_key = {fault.key: fault for fault in faults}
    deleted = set(keys)
    rewriting = [fault for key, fault in fault_by_key.items() if key not in deleted]
    unseen = "deleted without a fault, and listed still"
    return rewriting + [
        fault_by_key.get(key) or DeleteFault(key, "StillThere", unseen) for key in listed
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
    engine: AsyncEngine,
    blobs: Blobs,
    erasure: Erasure,
    faults: Sequence[DeleteFault],
    gone: Iterable[StorageKey],
) -> None:
    """Store the objects that block the erasure, and when their locks end; remove deleted ones."""
    if not faults and erasure.state != "failed":
        return
    ends = await asyncio.to_thread(_find_lock_ends, blobs, faults[:_ASKED])
    blocked = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
    failpoint("retention.note.before")
    async with engine.begin() as connection:
        await record_blocked(connection, erasure.id, blocked, [str(key) for key in gone])
    failpoint("retention.note.after")


def _find_lock_ends(
    blobs: Blobs, faults: Sequence[DeleteFault]
) -> dict[StorageKey, datetime | None]:
    return {fault.key: blobs.locked_until(fault.key) for fault in faults if fault.held}
