"""The metadata of events that are set aside, inline or in their blob, copies in the answer too."""

from collections.abc import Sequence

from inference_store.inference.errors import BlobForbidden, BlobMissing, BlobTooLarge
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.objects import Blobs

from .unstored import Aside, Metadatas

_BYTES = 1024 * 1024


def metadata_of(blobs: Blobs, some: Sequence[Aside]) -> Metadatas:
    """By number, of those that can be decoded and read. Blocks. Raises BlobsAway."""
    found = ((each.id, _metadata_in(blobs, each.event)) for each in some if each.event is not None)
    return {id: metadata for id, metadata in found if metadata is not None}


def _metadata_in(blobs: Blobs, event: InferenceEvent) -> Metadata | None:
    blob = _blob(blobs, event.inline_metadata, event.metadata)
    if blob is None:
        return None
    return read_metadata(blob, response=_blob(blobs, event.inline_response, event.response))


def _blob(blobs: Blobs, inline: bytes | None, place: StorageKey | None) -> bytes | None:
    if inline is not None:
        return inline
    if place is None:
        return b""
    try:
        return blobs.get(place, limit=_BYTES)
    except (BlobMissing, BlobForbidden, BlobTooLarge):
        return None
