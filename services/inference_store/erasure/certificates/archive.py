"""Certificates in the bucket: the chain, the lists, and the head where no one can take it away.

certificates/0000000042.json            a signed document, as it was signed
certificates/leaves/<root>/000001       a piece of a list, named by the root over the whole list
certificates/head                       the newest signed document once more, locked where it can be
"""

from collections.abc import Iterator
from typing import Final

from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES as PREFIX
from inference_store.objects import Blobs

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_MOST_BYTES: Final = 64 * 1024 * 1024
# Of a piece of a list: about 250,000 entries.
PIECE_BYTES: Final = 33 * 250_000


class Archive:
    """What of certificates lies in the bucket. All of it blocks, and raises BlobsAway."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default

    def put_new(self, number: int, text: str) -> bool:
        """Write a signed document; False: this number is taken, and nothing was written."""
        return self._blobs.put_new(self._key(number), text.encode(), content_type=_JSON)

    def get(self, number: int) -> bytes | None:
        """A signed document; None where there is none of this number."""
        return self._get(self._key(number))

    def after(self, number: int) -> Iterator[bytes]:
        """The signed documents behind a number, in their order, up to the first that is missing."""
        while (found := self.get(number + 1)) is not None:
            yield found
            number += 1

    def goes_on(self, number: int) -> bool:
        """Whether the bucket has a document of a greater number."""
        after = self._key(number).key
        name = self._blobs.first_after(self._bucket, f"{PREFIX}0", after)
        return name is not None

    def put_leaves(self, root: str, piece: int, leaves: bytes) -> None:
        """Write a piece of a list (from 1); what is there already is the same."""
        self._blobs.put(self._leaves(root, piece), leaves, content_type=_BYTES)

    def leaves(self, root: str) -> Iterator[bytes]:
        """The pieces of a list, as many as there are."""
        piece = 1
        while (found := self._get(self._leaves(root, piece))) is not None:
            yield found
            piece += 1

    def _get(self, key: StorageKey) -> bytes | None:
        try:
            return self._blobs.get(key, limit=_MOST_BYTES)
        except BlobMissing:
            return None

    def _key(self, number: int) -> StorageKey:
        return StorageKey(self._bucket, f"{PREFIX}{number:010}.json")

    def _leaves(self, root: str, piece: int) -> StorageKey:
        return StorageKey(self._bucket, f"{PREFIX}leaves/{root}/{piece:06}")
