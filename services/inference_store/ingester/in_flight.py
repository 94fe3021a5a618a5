"""A decoded event that is not written yet, and the bucket's copy if it is read again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from inference_store.index.registrations import Registration
from inference_store.index.unsettled import Record
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.objects import Fetched


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """The bucket's blobs of events that are read from it again.

    They replace the blobs inside the event, because edits are written to them. A response that no
    longer exists is unknown, and nothing waits for it.
    """

    # the blobs that were read already
    blobs: Mapping[StorageKey, bytes] = field(default_factory=dict)
    # the metadata blob that an edit made, by the inference's uid
    edited: Mapping[UUID, StorageKey] = field(default_factory=dict)
    # a sidecar's copy of a metadata blob that may no longer exist, by the record's offset
    copies: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class InFlightEvent:
    """A decoded event with its record, and the two blobs that the index reads."""

    record: Record
    event: InferenceEvent
    registration: Registration | None = None
    metadata: Fetched = None
    response: Fetched = None
    bucket_copy: BucketCopy | None = None
    # a copy of the metadata blob, which may no longer exist
    copy: bytes | None = None


def use_bucket_copy(item: InFlightEvent, bucket_copy: BucketCopy | None) -> None:
    """Replace the metadata inside the event by the bucket's."""
    item.bucket_copy = bucket_copy
    if bucket_copy is None:
        return
    event = item.event
    key = bucket_copy.edited.get(event.uid, event.metadata)
    copy = bucket_copy.copies.get(item.record.offset, event.inline_metadata)
    if key is None:
        return
    item.copy = copy
    item.event = replace(event, metadata=key, inline_metadata=None)
    item.metadata = bucket_copy.blobs.get(key)


def drop_missing(item: InFlightEvent) -> None:
    """Use the copy, or nothing, in place of blobs that are missing: nothing waits for them."""
    if isinstance(item.metadata, BlobMissing):
        item.metadata = item.copy
    if isinstance(item.response, BlobMissing):
        item.response = None


def has_no_response(item: InFlightEvent) -> bool:
    """Check whether the event names a response that does not exist."""
    event = item.event
    return item.response is None and event.inline_response is None and event.response is not None
