"""Forgetting the rest of a request: it lies in the metadata blob of our own producers, and in
sidecars.

Such a metadata blob is a JSON object with a member `request`; it is written again without. Only
keys that name the inference's own capture are touched: other blobs may be shared, and hold no
request. A sidecar holds the event as it came, with whatever its producer put into it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inference_store.store import sidecars
from inference_store.store.blobs import NOT_ALLOWED, Blobs, DeleteFault
from inference_store.store.errors import AccessDenied, BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.store.events import FIELDS, StorageKey, parse_stored
from inference_store.store.retention.marks import Mark
from inference_store.store.sidecars import CONTENT_TYPE, without_request

_LIMIT_BYTES = 64 * 1024 * 1024
_THREADS = 8
# A blob afterwards; None: nothing of it may stay.
_Rest = Callable[[bytes], bytes | None]


def forget_requests(blobs: Blobs, page: Sequence[Mark]) -> list[DeleteFault]:
    """Rewrite metadata blobs and sidecars of these marks. Repeatable; blocks. Raises BlobsAway."""
    rests = [(key, rest) for mark in page for key, rest in _rewritten(mark)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rewrite") as executor:
        found = executor.map(lambda pair: _forget(blobs, *pair), rests)
        return [fault for faults in found for fault in faults]


def _rewritten(mark: Mark) -> list[tuple[StorageKey, _Rest]]:
    found: list[tuple[StorageKey, _Rest]] = []
    if mark.metadata is not None and mark.owns(mark.metadata):
        found.append((parse_stored(mark.metadata), _of_metadata))
    if mark.sidecar is not None:
        found.append((parse_stored(mark.sidecar), _of_sidecar))
    return found


def _forget(blobs: Blobs, key: StorageKey, rest_of: _Rest) -> list[DeleteFault]:
    """What is refused of this object alone is its fault: whatever comes behind it goes on."""
    if key.bucket not in blobs.buckets.allowed:
        return [DeleteFault(key, "BucketNotAllowed", NOT_ALLOWED)]
    try:
        return _rewrite(blobs, key, rest_of)
    except AccessDenied as exc:
        return [DeleteFault(key, "AccessDenied", str(exc))]


def _rewrite(blobs: Blobs, key: StorageKey, rest_of: _Rest) -> list[DeleteFault]:
    try:
        blob = blobs.get(key, limit=_LIMIT_BYTES)
    except BlobUnreadable as exc:
        left = blobs.still_there([key])
        return [DeleteFault(key, "NotRewritten", f"it cannot be read: {exc}") for key in left]
    except BlobMissing:
        # What a delete marker hides holds the request still, and cannot be written again.
        return blobs.delete_hidden(key)
    except BlobTooLarge as exc:
        return [DeleteFault(key, "TooLarge", str(exc))]
    rest = rest_of(blob)
    if rest is None:
        return blobs.delete_objects([key]) or _listed_still(blobs, key)
    # Also when it has no request any more: a crash may have left the older version.
    return blobs.replace(key, rest, content_type=CONTENT_TYPE)


def _listed_still(blobs: Blobs, key: StorageKey) -> list[DeleteFault]:
    unseen = "deleted without a fault, and listed still"
    return [DeleteFault(left, "StillThere", unseen) for left in blobs.still_there([key])]


def _of_metadata(blob: bytes) -> bytes:
    rest = without_request(blob)
    return blob if rest is None else rest


def _of_sidecar(blob: bytes) -> bytes | None:
    """What cannot be read may hold the request: it goes whole."""
    try:
        contents = sidecars.without_input(sidecars.decode(blob), known=FIELDS)
    except ValueError:
        return None
    return sidecars.encode(contents)
