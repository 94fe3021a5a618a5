"""Reads events from the bucket: our own metadata blobs contain them, and sidecars those of other
producers. Each page of a listing becomes records like those from Kafka."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.records import Record
from inference_store.index.sidecars import REQUEST
from inference_store.inference.events import StorageKey
from inference_store.inference.json_text import UnreadableJson, read_exactly, write_json
from inference_store.inference.layout import EDITED, SIDECARS, capture_of
from inference_store.objects import OVER_BUDGET, Blobs, Fetched, Found
from inference_store.operations.reconcile.bucket_prefixes import BucketPrefix

# No partition of Kafka: such records are never quarantined.
_NOWHERE = PartitionId("", "bucket", 0, 0)
_LIMIT_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 128 * 1024 * 1024
_LARGE_BYTES = 512 * 1024
_METADATA = ("standard_metadata", "extended_metadata", "metadata")


@dataclass(slots=True)
class Carried:
    """An event that an object contains."""

    source: StorageKey
    record: Record
    # the blob that the index reads, without the other data that our own producers keep in it
    metadata: bytes | None = None
    # the sidecar's copy of a metadata blob
    copy: bytes | None = None
    is_sidecar: bool = False
    # the request was erased: the input was deleted at this time at the latest
    input_deleted_at: datetime | None = None


@dataclass(slots=True)
class Listing:
    """A page of a prefix. `after`: the key before the next page; None: it is the last page."""

    after: str | None
    carried: list[Carried] = field(default_factory=list)
    unreadable: list[tuple[StorageKey, str]] = field(default_factory=list)


def list_events(blobs: Blobs, bucket_prefix: BucketPrefix, after: str, *, limit: int) -> Listing:
    """Return the events of the next objects after a key. Blocks. Raises ObjectStoreUnavailable."""
    start = after.removeprefix(f"s3://{bucket_prefix.bucket}/") if after else ""
    page = blobs.page(bucket_prefix.bucket, bucket_prefix.listed, after=start, limit=limit)
    whole = page if len(page) < limit else _whole_captures(page)
    listing = Listing(None if len(page) < limit else str(whole[-1].place))
    there = {found_object.place.key for found_object in whole}
    sources = [
        found_object for found_object in whole if _carries(found_object.place.key, bucket_prefix)
    ]
    blobs_of = blobs.get_many(
        [source.place for source in sources], limit=_LIMIT_BYTES, budget=_BUDGET_BYTES
    )
    for number, (source, blob) in enumerate(zip(sources, blobs_of, strict=True)):
        if blob is OVER_BUDGET:
            # The next page begins with it: memory is bounded.
            listing.after = str(_before(whole, source))
            break
        _add(listing, number, source, blob, there)
    return listing


def _whole_captures(page: Sequence[Found]) -> Sequence[Found]:
    """Return the page without its last capture, which may continue on the next page."""
    last = _together(page[-1].place.key)
    return [
        found_object for found_object in page if _together(found_object.place.key) != last
    ] or page


def _before(page: Sequence[Found], source: Found) -> StorageKey:
    """Return the object before the first one of the same capture as `source`."""
    first = _together(source.place.key)
    return [found_object.place for found_object in page if found_object.place.key < first][-1]


def _together(key: str) -> str:
    """Return the prefix that the keys of one capture share; any other key is alone."""
    return key if capture_of(key) is None else f"{key.rpartition('/')[0]}/"


def _carries(key: str, bucket_prefix: BucketPrefix) -> bool:
    if bucket_prefix.prefix == EDITED:
        return False
    if key.startswith(f"{SIDECARS}/"):
        return True
    return key.endswith("/metadata") and capture_of(key) is not None


def _add(listing: Listing, number: int, source: Found, blob: Fetched, there: set[str]) -> None:
    if not isinstance(blob, bytes):
        listing.unreadable.append((source.place, f"it cannot be read: {blob}"))
        return
    try:
        if source.place.key.startswith(f"{SIDECARS}/"):
            listing.carried.append(_of_sidecar(number, source, blob))
        else:
            listing.carried.append(_of_metadata(number, source, blob, there))
    except (ValueError, UnreadableJson) as wrong:
        listing.unreadable.append((source.place, str(wrong)))


def _of_sidecar(number: int, source: Found, blob: bytes) -> Carried:
    contents = sidecars.decode(blob)
    if uid_in(source.place.key) is None:
        raise ValueError("its key names no inference")
    try:
        at = datetime.fromisoformat(str(contents.record.get("time")))
    except ValueError:
        at = source.modified_at
    return Carried(
        source.place,
        Record(_NOWHERE, number, at, None, contents.event),
        copy=contents.metadata,
        is_sidecar=True,
        input_deleted_at=source.modified_at if contents.input_deleted else None,
    )


def _of_metadata(number: int, source: Found, blob: bytes, there: set[str]) -> Carried:
    event, document = _event_in(blob)
    folder = source.place.key.rpartition("/")[0]
    erased = REQUEST not in document and f"{folder}/data" not in there
    return Carried(
        source.place,
        Record(_NOWHERE, number, source.modified_at, None, event),
        metadata=_alone(blob),
        input_deleted_at=source.modified_at if erased else None,
    )


def _event_in(blob: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return the event in a metadata blob, and the blob's document.

    Raises ValueError if it contains no event.
    """
    try:
        document = orjson.loads(blob)
        event = document.get("event") if isinstance(document, dict) else None
        written = orjson.dumps(event)
    except (orjson.JSONDecodeError, TypeError):
        document = read_exactly(blob)
        event = document.get("event") if isinstance(document, dict) else None
        written = write_json(event).encode("utf-8", "backslashreplace")
    if not isinstance(event, dict):
        raise ValueError("the metadata blob carries no event")
    return written, document


def _alone(blob: bytes) -> bytes:
    """Return a large metadata blob without the rest of the request, which no index reads."""
    if len(blob) <= _LARGE_BYTES:
        return blob
    exact = read_exactly(blob)
    needed = {name: value for name, value in exact.items() if name in _METADATA}
    return write_json(needed).encode("utf-8", "surrogatepass")


def uid_in(key: str) -> UUID | None:
    """Return the uid in the last part of a key, as of sidecars and edited blobs, or None."""
    try:
        return UUID(key.rpartition("/")[2])
    except ValueError:
        return None


def iterate_blobs(carried: Iterable[Carried]) -> Iterator[tuple[StorageKey, bytes]]:
    """Yield the metadata blobs that were read already."""
    for carried_event in carried:
        if carried_event.metadata is not None:
            yield carried_event.source, carried_event.metadata
