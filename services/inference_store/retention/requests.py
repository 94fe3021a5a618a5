"""Removes the request from objects that a scope-input erasure keeps: metadata blobs of our own
producers, and sidecars.

Such a metadata blob is a JSON object with a member `request`; it is written again without it. Only
keys that name the inference's own capture are changed: other blobs may be shared, and contain no
request. If other inferences use the blob too, it is written to a new key (see
erasure/delete/shared_metadata.py). A sidecar contains the event as it arrived, with all data of its
producer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from inference_store.erasure.delete.shared_metadata import Moves
from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.index import sidecars
from inference_store.index.sidecars import CONTENT_TYPE, without_request
from inference_store.inference.errors import AccessDenied, BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.inference.events import FIELDS, StorageKey, parse_stored
from inference_store.objects import NOT_ALLOWED, Blobs, DeleteFault

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
    """List the keys to read, the keys to write, and the functions that change the blobs."""
    rewrites: list[tuple[StorageKey, StorageKey, _Strip]] = []
    if mark.metadata is not None and mark.owns(mark.metadata):
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
        remaining = blobs.still_there([key])
        return [DeleteFault(key, "NotRewritten", f"it cannot be read: {exc}") for key in remaining]
    except BlobMissing:
        # Versions behind a delete marker still contain the request, and cannot be rewritten.
        return blobs.delete_hidden(key)
    except BlobTooLarge as exc:
        return [DeleteFault(key, "TooLarge", str(exc))]
    rest = strip(blob)
    if rest is None:
        return blobs.delete_objects([key]) or _list_remaining(blobs, key)
    # Also if it has no request: a crash may have left the older version.
    return blobs.replace(key, rest, content_type=CONTENT_TYPE)


def _list_remaining(blobs: Blobs, key: StorageKey) -> list[DeleteFault]:
    unseen = "deleted without a fault, and listed still"
    return [DeleteFault(key_left, "StillThere", unseen) for key_left in blobs.still_there([key])]


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
