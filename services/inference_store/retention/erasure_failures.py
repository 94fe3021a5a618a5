"""Erasure failures: what of a batch could not be erased, and why. They are stored and counted."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.erasures import Erasure, obstacles
from inference_store.erasure.failures import failed, reason_of
from inference_store.erasure.mark.marks import Mark
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, DeleteFault
from inference_store.platform.failpoints import failpoint

# Locks are looked up for at most so many objects of a batch.
_ASKED = 100


def list_objects_of(mark: Mark) -> list[StorageKey]:
    """List every object of a mark; if one of them could not be erased, the mark stays."""
    keys: set[str | None] = set(mark.doomed)
    if mark.scope == "input":
        keys |= {mark.metadata, mark.sidecar}
    return [parse_stored(key) for key in keys if key is not None]


def merge_faults(
    faults: Iterable[DeleteFault], keys: Sequence[StorageKey], left: Iterable[StorageKey]
) -> list[DeleteFault]:
    """Return faults for what is still listed, whatever the delete answered, and for failed
    rewrites."""
    said = {fault.key: fault for fault in faults}
    deleted = set(keys)
    rewriting = [fault for key, fault in said.items() if key not in deleted]
    unseen = "deleted without a fault, and listed still"
    return rewriting + [said.get(key) or DeleteFault(key, "StillThere", unseen) for key in left]


def format_failures(faults: Sequence[DeleteFault]) -> str | None:
    """Describe what failed, for people, and count every fault."""
    if not faults:
        return None
    for fault in faults:
        failed(reason_of(fault.code, fault.message))
    first = faults[0]
    others = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{first.key}{others}: {first.code} {first.message}".strip()


async def record_failures(
    engine: AsyncEngine,
    blobs: Blobs,
    erasure: Erasure,
    faults: Sequence[DeleteFault],
    done: Sequence[Mark],
) -> None:
    """Store what blocks the erasure, and until when; remove what no longer does."""
    if not faults and erasure.state != "failed":
        return
    ends = await asyncio.to_thread(_find_lock_ends, blobs, faults[:_ASKED])
    found = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
    gone = [str(key) for mark in done for key in list_objects_of(mark)]
    failpoint("retention.note.before")
    async with engine.begin() as connection:
        await obstacles.note(connection, erasure.id, found, gone)
    failpoint("retention.note.after")


def _find_lock_ends(
    blobs: Blobs, faults: Sequence[DeleteFault]
) -> dict[StorageKey, datetime | None]:
    return {fault.key: blobs.locked_until(fault.key) for fault in faults if fault.held}
