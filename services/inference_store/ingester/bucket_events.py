"""Reads events from the bucket: our own metadata blobs carry them, in segments or as objects, and
sidecars those of other producers. Each page of a listing becomes records like those from Kafka.

A segment is read whole, by one request; of its bytes only metadata and responses are kept. The
event in a metadata blob of a segment does not name that blob, and may name another segment, where
the capture was before: what is found beside it counts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.sidecars import REQUEST
from inference_store.index.unsettled import Record
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey, parse_instant, uid_floor
from inference_store.inference.json_text import UnreadableJson, read_exactly, write_json
from inference_store.inference.layout import (
    EDITED,
    SIDECARS,
    Kind,
    Member,
    capture_of,
    is_packed_in,
    is_truth,
    ordinal_of,
    segment_of,
    segment_of_key,
)
from inference_store.inference.tar import SUFFIXES, TRUTH_SUFFIX, Entry
from inference_store.ingester.batch import ReadRecord
from inference_store.ingester.reader import Places
from inference_store.objects import OVER_BUDGET, Blobs, Contents, Fetched, Found
from inference_store.operations.reconcile.stored_reports import BucketPrefix

# No partition of Kafka: such records are never quarantined.
_NOWHERE = PartitionId("", "bucket", 0, 0)
_LIMIT_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 128 * 1024 * 1024
_LARGE_BYTES = 512 * 1024
_METADATA = ("standard_metadata", "extended_metadata", "metadata")
_SEGMENTS_AT_ONCE: Final = 4
"""Segments that are read beside each other."""
_LAST: Final = (1 << 62) - 1
_ID_CHARACTERS: Final = 36


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
    # in a segment: where its blobs are, and the response
    places: Places | None = None
    response: bytes | None = None
    # the model's part of keys and the uids among which its own is, if edits may have moved its
    # metadata to a key with that
    edited_among: tuple[str, UUID, UUID] | None = None


class Listed(NamedTuple):
    """Objects that were listed and are not read yet. `end`: the key before the next ones; None: the
    list ends with them."""

    objects: Sequence[Found]
    end: str | None


@dataclass(slots=True)
class Listing:
    """A page of a prefix. `after`: the key before the next page; None: it is the last page.
    `ahead`: what was listed behind it."""

    after: str | None
    carried: list[Carried] = field(default_factory=list)
    """Each at the place that is the offset of its record."""
    unreadable: list[tuple[StorageKey, str]] = field(default_factory=list)
    reads: list[ReadRecord] = field(default_factory=list)
    """The events as read."""
    truths: list[tuple[StorageKey, bytes | None]] = field(default_factory=list)
    """Documents of ground truth; None: it is too large to be read."""
    ahead: Listed | None = None


def list_events(
    blobs: Blobs,
    bucket_prefix: BucketPrefix,
    after: str,
    *,
    limit: int,
    response_bytes: int = 0,
    ahead: Listed | None = None,
) -> Listing:
    """Return the events of the next objects after a key. Blocks. Raises ObjectStoreUnavailable.

    `response_bytes`: responses of segments up to so many are kept; `ahead`: what the page before
    has listed behind itself.
    """
    listed = ahead or _list(blobs, bucket_prefix, after, limit)
    segments, cut = _read_segments(blobs, listed.objects, limit, response_bytes)
    whole = [each for each in listed.objects if cut is None or each.place.key <= cut]
    sources = [each for each in whole if _carries(each.place.key, bucket_prefix)]
    blobs_of = blobs.get_many(
        [source.place for source in sources], limit=_LIMIT_BYTES, budget=_BUDGET_BYTES
    )
    if OVER_BUDGET in blobs_of:
        # The next page begins with it: memory is bounded.
        first = _together(sources[blobs_of.index(OVER_BUDGET)].place.key)
        whole = [each for each in whole if each.place.key < first]
    listing = Listing(listed.end)
    if len(whole) < len(listed.objects):
        listing.after = str(whole[-1].place)
        listing.ahead = Listed(listed.objects[len(whole) :], listed.end)
    there = {each.place.key for each in whole}
    blob_by_key = dict(zip((source.place for source in sources), blobs_of, strict=True))
    for each in whole:
        if (segment := segments.get(each.place)) is not None:
            _add_segment(listing, each, segment)
        elif each.place in blob_by_key:
            _add(listing, each, blob_by_key[each.place], there)
    return listing


def _list(blobs: Blobs, bucket_prefix: BucketPrefix, after: str, limit: int) -> Listed:
    start = after.removeprefix(f"s3://{bucket_prefix.bucket}/") if after else ""
    whole = blobs.page(bucket_prefix.bucket, bucket_prefix.listed, after=start, limit=limit)
    if len(whole) < limit:
        return Listed(whole, None)
    # without the last capture, which may continue on the next page
    last = _together(whole[-1].place.key)
    whole = [each for each in whole if _together(each.place.key) != last] or whole
    return Listed(whole, str(whole[-1].place))


def _together(key: str) -> str:
    """Return the prefix that the keys of one capture share; any other key is alone."""
    return key if capture_of(key) is None else f"{key.rpartition('/')[0]}/"


def _carries(key: str, bucket_prefix: BucketPrefix) -> bool:
    if bucket_prefix.prefix == EDITED:
        return uid_in(key) is not None
    is_of_capture = key.endswith("/metadata") and capture_of(key) is not None
    return key.startswith(f"{SIDECARS}/") or is_of_capture


def _add(listing: Listing, source: Found, blob: Fetched, there: set[str]) -> None:
    if not isinstance(blob, bytes):
        listing.unreadable.append((source.place, f"it cannot be read: {blob}"))
        return
    number, key = len(listing.carried), source.place.key
    try:
        if key.startswith(f"{SIDECARS}/"):
            listing.carried.append(_of_sidecar(number, source, blob))
        elif capture_of(key) is not None:
            listing.carried.append(_of_metadata(number, source, blob, there))
        elif (edited := _of_edited(number, source, blob)) is not None:
            listing.carried.append(edited)
    except (ValueError, UnreadableJson) as wrong:
        listing.unreadable.append((source.place, str(wrong)))


def _of_sidecar(number: int, source: Found, blob: bytes) -> Carried:
    contents = sidecars.decode(blob)
    uid = uid_in(source.place.key)
    if uid is None:
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
        edited_among=(source.place.key.split("/")[1], uid, uid),
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


def _of_edited(number: int, source: Found, blob: bytes) -> Carried | None:
    """Return the event of a packed capture whose metadata left its segment with its input; None: it
    is carried by another object."""
    try:
        event, document = _event_in(blob)
    except (ValueError, UnreadableJson):
        return None
    if document["event"].get("metadata_storage_key") != "" or REQUEST in document:
        return None
    return Carried(
        source.place,
        Record(_NOWHERE, number, source.modified_at, None, event),
        metadata=_alone(blob),
        input_deleted_at=source.modified_at,
        places=Places({"metadata": source.place}),
    )


@dataclass(slots=True)
class _Segment:
    """A segment that was read, or why it cannot be."""

    contents: Contents | None = None
    fault: str = ""
    bytes: int = 0


def _read_segments(
    blobs: Blobs, objects: Sequence[Found], limit: int, response_bytes: int
) -> tuple[Mapping[StorageKey, _Segment], str | None]:
    """Return the first segments among these objects, in their order; and the key of the last one,
    None: all were read. With the one that they have more events than `limit` or too many bytes they
    end."""
    found = [each.place for each in objects if segment_of_key(each.place.key) is not None]
    read: dict[StorageKey, _Segment] = {}
    with ThreadPoolExecutor(_SEGMENTS_AT_ONCE, thread_name_prefix="segments") as executor:
        for begin in range(0, len(found), _SEGMENTS_AT_ONCE):
            some = found[begin : begin + _SEGMENTS_AT_ONCE]
            one = partial(_read_segment, blobs, response_bytes)
            read |= zip(some, executor.map(one, some), strict=True)
            kept = sum(segment.bytes for segment in read.values())
            events = sum(len(s.contents.entries) for s in read.values() if s.contents) // 3
            if events >= limit or kept >= _BUDGET_BYTES:
                return read, some[-1].key
    return read, None


def _read_segment(blobs: Blobs, response_bytes: int, key: StorageKey) -> _Segment:
    segment = _Segment()
    # by an entry's suffix: the most bytes of one, and of all that are kept with it
    limits = {
        SUFFIXES["metadata"]: (_LIMIT_BYTES, _BUDGET_BYTES),
        SUFFIXES["response"]: (response_bytes, _BUDGET_BYTES // _SEGMENTS_AT_ONCE),
        TRUTH_SUFFIX: (_LIMIT_BYTES, _BUDGET_BYTES),
    }

    def wants(entry: Entry) -> bool:
        most, budget = limits.get(entry.name[_ID_CHARACTERS:], (-1, 0))
        if entry.size > most or segment.bytes + entry.size > budget:
            return False
        segment.bytes += entry.size
        return True

    try:
        segment.contents = blobs.read_segment(key, wants)
    except (BlobMissing, ValueError) as wrong:
        segment.fault = str(wrong)
    return segment


def _add_segment(listing: Listing, source: Found, segment: _Segment) -> None:
    contents = segment.contents
    if contents is None:
        listing.unreadable.append((source.place, segment.fault))
        return
    if is_truth(str(source.place)):
        documents = (each for each in contents.entries if each[0].name.endswith(TRUTH_SUFFIX))
        listing.truths += [(_place(source, entry), data) for entry, data in documents]
        return
    captures: defaultdict[UUID, dict[Kind, tuple[Entry, bytes | None]]] = defaultdict(dict)
    for entry, data in contents.entries:
        for kind in _KINDS:
            if (capture := _read_name(entry.name, kind, source.place)) is not None:
                captures[capture][kind] = entry, data
    members = max(map(ordinal_of, captures), default=-1) + 1
    extras = {
        "segment_members": members,
        "segment_bytes": contents.size,
        "segment_hash": contents.hash,
    }
    for capture, blobs in captures.items():
        if "metadata" not in blobs:
            continue
        try:
            listing.carried.append(
                _of_capture(len(listing.carried), source, capture, blobs, extras)
            )
        except (ValueError, UnreadableJson) as wrong:
            place = _place(source, blobs["metadata"][0])
            listing.unreadable.append((place, str(wrong)))


_KINDS: Final[tuple[Kind, ...]] = ("data", "response", "metadata")


def _read_name(name: str, kind: Kind, segment: StorageKey) -> UUID | None:
    """Return the capture that an entry is of, if it is of that kind; None also if it has another
    segment's id."""
    stem, names = name.removesuffix(SUFFIXES[kind]), segment_of_key(segment.key)
    try:
        capture = UUID(stem)
    except ValueError:
        return None
    is_ours = names is not None and stem == str(capture) and is_packed_in(capture, names[2])
    return capture if is_ours else None


def _of_capture(
    number: int,
    source: Found,
    capture: UUID,
    blobs: Mapping[Kind, tuple[Entry, bytes | None]],
    extras: Mapping[str, Any],
) -> Carried:
    entry, blob = blobs["metadata"]
    if blob is None:
        raise ValueError(f"it has {entry.size} bytes; at most {_LIMIT_BYTES} are read")
    written, document = _event_in(blob)
    event = document["event"]
    if str(event.get("capture_id")).lower() != str(capture):
        raise ValueError(f"its event is that of another capture: {event.get('capture_id')}")
    at = parse_instant(str(event.get("request_received_at")))
    lowest = None if at is None else uid_floor(at)
    erased = REQUEST not in document or bool(event.get("data_storage_key") and "data" not in blobs)
    keys: dict[str, Any] = {
        kind: _place(source, blobs[kind][0]) if kind in blobs else None for kind in _KINDS
    }
    metadata = _alone(blob)
    return Carried(
        _place(source, entry),
        Record(_NOWHERE, number, source.modified_at, None, written),
        metadata=metadata,
        copy=metadata,
        input_deleted_at=source.modified_at if erased else None,
        places=Places(keys, extras),
        response=blobs["response"][1] if "response" in blobs else None,
        edited_among=None
        if lowest is None
        else (segment_of(str(event.get("model_id"))), lowest, UUID(int=lowest.int | _LAST)),
    )


def _place(source: Found, entry: Entry) -> StorageKey:
    return StorageKey(source.place.bucket, str(Member(source.place.key, entry.offset, entry.size)))


def _event_in(blob: bytes) -> tuple[bytes, Mapping[str, Any]]:
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
