"""Forgetting the rest of a request: it lies in the metadata blob of our own producers.

Such a blob is a JSON object with a member `request`; it is written again without. Only keys that
name the inference's own capture are touched: other blobs may be shared, and hold no request.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from inference_store.store.blobs import Blobs, DeleteFault
from inference_store.store.errors import BlobMissing, BlobTooLarge
from inference_store.store.events import StorageKey, parse_stored
from inference_store.store.json_text import UnreadableJson, read_exactly, write_json
from inference_store.store.layout import belongs_to
from inference_store.store.retention.marks import Mark

MEMBER = "request"
_LIMIT_BYTES = 64 * 1024 * 1024
_THREADS = 8


def forget_requests(blobs: Blobs, page: Sequence[Mark]) -> list[DeleteFault]:
    """Rewrite the metadata blobs of these marks. Repeatable; blocks. Raises BlobsAway."""
    keys = [
        key
        for key, mark in ((parse_stored(mark.metadata), mark) for mark in page if mark.metadata)
        if belongs_to(key.key, mark.capture_id)
    ]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rewrite") as executor:
        found = executor.map(lambda key: _forget(blobs, key), keys)
        return [fault for faults in found for fault in faults]


def _forget(blobs: Blobs, key: StorageKey) -> list[DeleteFault]:
    try:
        blob = blobs.get(key, limit=_LIMIT_BYTES)
    except BlobMissing:
        return []
    except BlobTooLarge as exc:
        return [DeleteFault(key, "TooLarge", str(exc))]
    rest = without_request(blob)
    # Also when it has no request any more: a crash may have left the older version.
    return blobs.replace(key, blob if rest is None else rest, content_type="application/json")


def without_request(blob: bytes) -> bytes | None:
    """The blob without its request, all else as it was written; None: it has none."""
    try:
        found = read_exactly(blob)
    except UnreadableJson:
        return None
    if not isinstance(found, dict) or MEMBER not in found:
        return None
    rest = {name: value for name, value in found.items() if name != MEMBER}
    # Lone surrogates lie inside strings only, where `\ud800` is JSON; also what was no UTF-8.
    return write_json(rest).encode("utf-8", "backslashreplace")
