"""An event on its way to the index, and what the bucket says beside it where it is read again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from inference_store.index.records import Record
from inference_store.index.registrations import Registration
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.objects import Fetched


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """What the bucket says beside the events, where they are read from it again.

    The blobs count then, not what travelled in the event: edits are written to them. A response
    that is not there any more is unknown, and is not waited for.
    """

    # blobs that were read already
    blobs: Mapping[StorageKey, bytes] = field(default_factory=dict)
    # the metadata blob that an edit made, by the inference's uid
    edited: Mapping[UUID, StorageKey] = field(default_factory=dict)
    # what a sidecar has of a metadata blob that is no more, by the record's offset
    copies: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class InFlightEvent:
    """A decoded event on its way: its record, and the two blobs that the index reads."""

    record: Record
    event: InferenceEvent
    registration: Registration | None = None
    metadata: Fetched = None
    response: Fetched = None
    kept: BucketCopy | None = None
    # of a metadata blob that may be gone
    copy: bytes | None = None


def from_bucket(item: InFlightEvent, kept: BucketCopy | None) -> None:
    """Take what the bucket has instead of what travelled in the event."""
    item.kept = kept
    if kept is None:
        return
    event = item.event
    place = kept.edited.get(event.uid, event.metadata)
    copy = kept.copies.get(item.record.offset, event.inline_metadata)
    if place is None:
        return
    item.copy = copy
    item.event = replace(event, metadata=place, inline_metadata=None)
    item.metadata = kept.blobs.get(place)


def without_missing(item: InFlightEvent) -> None:
    """What is not there is not waited for."""
    if isinstance(item.metadata, BlobMissing):
        item.metadata = item.copy
    if isinstance(item.response, BlobMissing):
        item.response = None


def has_no_response(item: InFlightEvent) -> bool:
    """Whether its response is named, and gone."""
    event = item.event
    return item.response is None and event.inline_response is None and event.response is not None
