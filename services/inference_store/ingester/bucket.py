"""What the bucket says of inferences: our own metadata blobs carry the event, and sidecars that of
other producers. A page of a listing at a time becomes records, as if Kafka had given them."""

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

# Nothing of Kafka: such records are never set aside.
_NOWHERE = PartitionId("", "bucket", 0, 0)
_LIMIT_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 128 * 1024 * 1024
_LARGE_BYTES = 512 * 1024
_METADATA = ("standard_metadata", "extended_metadata", "metadata")


@dataclass(slots=True)
class Carried:
    """An event that an object carries."""

    source: StorageKey
    record: Record
    # the blob that the index reads, without what else our own producers keep in it
    metadata: bytes | None = None
    # what a sidecar has of a metadata blob
    copy: bytes | None = None
    is_sidecar: bool = False
    # the request was erased: since then at the latest the input is gone
    input_deleted_at: datetime | None = None


@dataclass(slots=True)
class Listed:
    """A page of a place. `after`: where the next one begins; None: this is the last."""

    after: str | None
    carried: list[Carried] = field(default_factory=list)
    unreadable: list[tuple[StorageKey, str]] = field(default_factory=list)


def listed(blobs: Blobs, place: BucketPrefix, after: str, *, limit: int) -> Listed:
    """The events of the first objects behind `after`. Blocks. Raises BlobsAway."""
    start = after.removeprefix(f"s3://{place.bucket}/") if after else ""
    page = blobs.page(place.bucket, place.listed, after=start, limit=limit)
    whole = page if len(page) < limit else _whole_captures(page)
    found = Listed(None if len(page) < limit else str(whole[-1].place))
    there = {each.place.key for each in whole}
    sources = [each for each in whole if _carries(each.place.key, place)]
    blobs_of = blobs.get_many(
        [each.place for each in sources], limit=_LIMIT_BYTES, budget=_BUDGET_BYTES
    )
    for number, (source, blob) in enumerate(zip(sources, blobs_of, strict=True)):
        if blob is OVER_BUDGET:
            # The next page begins with it: what is in memory is bounded.
            found.after = str(_before(whole, source))
            break
        _add(found, number, source, blob, there)
    return found


def _whole_captures(page: Sequence[Found]) -> Sequence[Found]:
    """The page without its last capture, of which more may follow."""
    last = _together(page[-1].place.key)
    return [each for each in page if _together(each.place.key) != last] or page


def _before(page: Sequence[Found], source: Found) -> StorageKey:
    """The object before the first one that belongs with `source`."""
    first = _together(source.place.key)
    return [each.place for each in page if each.place.key < first][-1]


def _together(key: str) -> str:
    """What keys of one capture begin with; any other key is alone."""
    return key if capture_of(key) is None else f"{key.rpartition('/')[0]}/"


def _carries(key: str, place: BucketPrefix) -> bool:
    if place.prefix == EDITED:
        return False
    if key.startswith(f"{SIDECARS}/"):
        return True
    return key.endswith("/metadata") and capture_of(key) is not None


def _add(found: Listed, number: int, source: Found, blob: Fetched, there: set[str]) -> None:
    if not isinstance(blob, bytes):
        found.unreadable.append((source.place, f"it cannot be read: {blob}"))
        return
    try:
        if source.place.key.startswith(f"{SIDECARS}/"):
            found.carried.append(_of_sidecar(number, source, blob))
        else:
            found.carried.append(_of_metadata(number, source, blob, there))
    except (ValueError, UnreadableJson) as wrong:
        found.unreadable.append((source.place, str(wrong)))


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
    """The event that a metadata blob carries. Raises ValueError where it carries none."""
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
    """A large metadata blob without the rest of the request, which no index reads."""
    if len(blob) <= _LARGE_BYTES:
        return blob
    exact = read_exactly(blob)
    kept = {name: value for name, value in exact.items() if name in _METADATA}
    return write_json(kept).encode("utf-8", "surrogatepass")


def uid_in(key: str) -> UUID | None:
    """The uid that the last part of a key is, as with sidecars and what edits make."""
    try:
        return UUID(key.rpartition("/")[2])
    except ValueError:
        return None


def known_of(carried: Iterable[Carried]) -> Iterator[tuple[StorageKey, bytes]]:
    """The metadata blobs that are here already."""
    for each in carried:
        if each.metadata is not None:
            yield each.source, each.metadata
