"""Certificates in the bucket: the chain, the lists, and a head that nobody can remove.

certificates/0000000042.json            a signed document, as it was signed
certificates/leaves/<root>/000001       a piece of a list, named by the root over the whole list
certificates/head                       the newest signed document once more, locked where it can be
"""

from collections.abc import Iterator
from typing import Final

from inference_store.erasure.log.numbered_objects import NumberedObjects
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES as PREFIX
from inference_store.objects import Blobs

_BYTES: Final = "application/octet-stream"
_MOST_BYTES: Final = 64 * 1024 * 1024
# Of a piece of a list: about 250,000 entries.
PIECE_BYTES: Final = 33 * 250_000


class Archive:
    """The signed documents and the lists in the bucket.

    All of it blocks, and raises ObjectStoreUnavailable.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self.documents = NumberedObjects(blobs, PREFIX, suffix=".json")

    def continues_after(self, number: int) -> bool:
        """Return whether the bucket has a document of a greater number."""
        return self.documents.find_name_after(number, start="0") is not None

    def put_leaves(self, root: str, piece: int, leaves: bytes) -> None:
        """Write a piece of a list, numbered from 1; an existing one is the same."""
        self._blobs.put(self._leaves(root, piece), leaves, content_type=_BYTES)

    def leaves(self, root: str) -> Iterator[bytes]:
        """Yield the pieces of a list, as many as there are."""
        piece = 1
        while (leaves := self._read_piece(root, piece)) is not None:
            yield leaves
            piece += 1

    def _read_piece(self, root: str, piece: int) -> bytes | None:
        try:
            return self._blobs.get(self._leaves(root, piece), limit=_MOST_BYTES)
        except BlobMissing:
            return None

    def _leaves(self, root: str, piece: int) -> StorageKey:
        return StorageKey(self._bucket, f"{PREFIX}leaves/{root}/{piece:06}")
