"""Removes the request from what a scope-input erasure keeps: metadata blobs of our own producers,
and sidecars.

Such a metadata blob is a JSON object with a member `request`; it is written again without it. Only
keys that name the inference's own capture are touched: other blobs may be shared, and hold no
request. If other inferences use the blob too, it is written to a new key (see
erasure/delete/own_metadata.py). A sidecar holds the event as it came, with whatever its producer
put into it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inference_store.erasure.delete.own_metadata import Moves
from inference_store.erasure.mark.marks import Mark
from inference_store.index import sidecars
from inference_store.index.sidecars import CONTENT_TYPE, without_request
from inference_store.inference.errors import AccessDenied, BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.inference.events import FIELDS, StorageKey, parse_stored
from inference_store.objects import NOT_ALLOWED, Blobs, DeleteFault

_LIMIT_BYTES = 64 * 1024 * 1024
_THREADS = 8
# The blob without the request; None: nothing of it may stay.
_Strip = Callable[[bytes], bytes | None]


def remove_requests(blobs: Blobs, page: Sequence[Mark], moves: Moves) -> list[DeleteFault]:
    """Rewrite metadata blobs and sidecars of these marks. Repeatable; blocks. Raises BlobsAway."""
    rests = [each for mark in page for each in _list_rewrites(mark, moves)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rewrite") as executor:
        found = executor.map(lambda each: _remove_request(blobs, *each), rests)
        return [fault for faults in found for fault in faults]


def _list_rewrites(mark: Mark, moves: Moves) -> list[tuple[StorageKey, StorageKey, _Strip]]:
    """List what to read, where to write it, and how to change it."""
    found: list[tuple[StorageKey, StorageKey, _Strip]] = []
    if mark.metadata is not None and mark.owns(mark.metadata):
        to = moves.get(mark.metadata, mark.metadata)
        if to is not None:
            found.append((parse_stored(mark.metadata), parse_stored(to), _strip_metadata))
    if mark.sidecar is not None:
        key = parse_stored(mark.sidecar)
        found.append((key, key, _strip_sidecar))
    return found


def _remove_request(
    blobs: Blobs, key: StorageKey, to: StorageKey, strip: _Strip
) -> list[DeleteFault]:
    """Rewrite one object; if only this object is refused, that is its fault, and the others go
    on."""
    if key.bucket not in blobs.buckets.allowed:
        return [DeleteFault(key, "BucketNotAllowed", NOT_ALLOWED)]
    try:
        if to != key:
            return _write_beside(blobs, key, to, strip)
        return _rewrite(blobs, key, strip)
    except AccessDenied as exc:
        return [DeleteFault(key, "AccessDenied", str(exc))]


def _write_beside(
    blobs: Blobs, key: StorageKey, to: StorageKey, strip: _Strip
) -> list[DeleteFault]:
    """Write the rest to another key; the old object stays, because other inferences use it."""
    try:
        rest = strip(blobs.get(key, limit=_LIMIT_BYTES))
    except BlobMissing:
        return []
    except (BlobTooLarge, BlobUnreadable) as exc:
        return [DeleteFault(key, "NotRewritten", f"it cannot be read: {exc}")]
    faults = blobs.replace(to, rest or b"", content_type=CONTENT_TYPE)
    return [DeleteFault(key, fault.code, fault.message) for fault in faults]


def _rewrite(blobs: Blobs, key: StorageKey, strip: _Strip) -> list[DeleteFault]:
    try:
        blob = blobs.get(key, limit=_LIMIT_BYTES)
    except BlobUnreadable as exc:
        left = blobs.still_there([key])
        return [DeleteFault(key, "NotRewritten", f"it cannot be read: {exc}") for key in left]
    except BlobMissing:
        # What a delete marker hides still holds the request, and cannot be written again.
        return blobs.delete_hidden(key)
    except BlobTooLarge as exc:
        return [DeleteFault(key, "TooLarge", str(exc))]
    rest = strip(blob)
    if rest is None:
        return blobs.delete_objects([key]) or _list_left(blobs, key)
    # Also if it has no request any more: a crash may have left the older version.
    return blobs.replace(key, rest, content_type=CONTENT_TYPE)


def _list_left(blobs: Blobs, key: StorageKey) -> list[DeleteFault]:
    unseen = "deleted without a fault, and listed still"
    return [DeleteFault(left, "StillThere", unseen) for left in blobs.still_there([key])]


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
