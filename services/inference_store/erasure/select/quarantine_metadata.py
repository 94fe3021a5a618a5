"""Loads the metadata of quarantined events, inline or from their blob, with copies in the
response."""

from collections.abc import Sequence

from inference_store.inference.errors import BlobForbidden, BlobMissing, BlobTooLarge
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.objects import Blobs

from .quarantined_events import EventMetadata, QuarantinedEvent

_BYTES = 1024 * 1024


def load_metadata(blobs: Blobs, events: Sequence[QuarantinedEvent]) -> EventMetadata:
    """Return metadata by event id, of those that can be decoded and read.

    Blocks. Raises ObjectStoreUnavailable.
    """
    metadata_by_id = (
        (quarantined.id, _read_event_metadata(blobs, quarantined.event))
        for quarantined in events
        if quarantined.event is not None
    )
    return {id: metadata for id, metadata in metadata_by_id if metadata is not None}


def _read_event_metadata(blobs: Blobs, event: InferenceEvent) -> Metadata | None:
    blob = _read_blob(blobs, event.inline_metadata, event.metadata)
    if blob is None:
        return None
    return read_metadata(blob, response=_read_blob(blobs, event.inline_response, event.response))


def _read_blob(blobs: Blobs, inline: bytes | None, storage_key: StorageKey | None) -> bytes | None:
    if inline is not None:
        return inline
    if storage_key is None:
        return b""
    try:
        return blobs.get(storage_key, limit=_BYTES)
    except (BlobMissing, BlobForbidden, BlobTooLarge):
        return None
