"""A chain in the bucket: an object for each entry, named by its number of ten digits, and its head.

The head is a copy of the newest signed document, by which a missing end is noticed: it is under one
key whose versions nobody can delete while they are locked.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES
from inference_store.objects import Blobs, LockedObject
from inference_store.platform.settings import BlobSettings

from .hash_chain import Link
from .signed_chain import NotSigned, SignedDocument, read_document

DIGITS: Final = 10
MOST_BYTES: Final = 64 * 1024 * 1024
_CONTENT_TYPE: Final = "application/json"


class NumberedObjects:
    """Reads and writes the entries of one chain.

    All of it blocks, and raises ObjectStoreUnavailable.
    """

    def __init__(self, blobs: Blobs, prefix: str, *, suffix: str = "") -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self.prefix = prefix
        self._suffix = suffix

    @property
    def location(self) -> str:
        """Their location, for messages."""
        return f"s3://{self._bucket}/{self.prefix}"

    def key(self, number: int) -> StorageKey:
        """Return the key of the entry with a number."""
        return StorageKey(self._bucket, f"{self.prefix}{number:0{DIGITS}}{self._suffix}")

    def get(self, number: int) -> bytes | None:
        """Return the entry with a number; None if there is none."""
        try:
            return self._blobs.get(self.key(number), limit=2 * MOST_BYTES)
        except BlobMissing:
            return None

    def read_after(self, number: int) -> Iterator[bytes]:
        """Yield the entries after a number, in order, up to the first that is missing."""
        while (data := self.get(number + 1)) is not None:
            yield data
            number += 1

    def put_new(self, number: int, data: bytes) -> bool:
        """Write an entry; return False, and write nothing, if the number is taken.

        If the store does not support conditional writes, only the check before the write prevents
        that an entry is overwritten.
        """
        key = self.key(number)
        return not self._exists(key) and self._blobs.put_new(key, data, content_type=_CONTENT_TYPE)

    def replace(self, number: int, data: bytes) -> str | None:
        """Overwrite an entry and delete its older versions; return why one of them stays, if so."""
        key = self.key(number)
        faults = self._blobs.replace(key, data, content_type=_CONTENT_TYPE)
        return f"{key}: {faults[0].code} {faults[0].message}" if faults else None

    def find_name_after(self, number: int, *, start: str = "") -> str | None:
        """Return the first name after that of a number, without the prefix; None if there is none.

        `start`: what the name begins with.
        """
        after = self.key(number).key
        name = self._blobs.first_after(self._bucket, f"{self.prefix}{start}", after)
        return None if name is None else name.removeprefix(self.prefix)

    def _exists(self, key: StorageKey) -> bool:
        try:
            self._blobs.head(key)
        except BlobMissing:
            return False
        return True


CERTIFICATES_HEAD = f"{CERTIFICATES}head"
# For the newest signed checkpoint of the audit.
AUDIT_HEAD = f"{CERTIFICATES}audit-head"
_MOST_BYTES = 1024 * 1024


class ChainHead:
    """A head in the bucket. All of it blocks, and raises ObjectStoreUnavailable."""

    def __init__(
        self, settings: BlobSettings, *, lock_days: int, key: str = CERTIFICATES_HEAD
    ) -> None:
        self._object = LockedObject(settings, StorageKey(settings.s3_bucket, key))
        self._lock_days = lock_days
        self._last: str | None = None

    def put(self, text: str) -> bool:
        """Write a signed document as the newest; return whether it is locked."""
        until = datetime.now(UTC) + timedelta(days=self._lock_days)
        return self._object.put(
            text.encode(),
            content_type="application/json",
            until=until if self._lock_days else None,
        )

    def put_once(self, text: str) -> None:
        """Write as `put`, unless it is what was written last."""
        if text != self._last:
            self.put(text)
            self._last = text

    def versions(self) -> list[SignedDocument]:
        """Return what was written and is still there, by number, without what is not signed.

        The latest alone may be that of a chain whose end was removed, and that went on.
        """
        return sorted(self._read_versions(), key=lambda document: document.number)

    def ends(self) -> list[Link]:
        """Return the links of the versions, each once.

        There may be a version for every minute of the time that they are locked.
        """
        links = {Link(document.number, document.hash) for document in self._read_versions()}
        return sorted(links, key=lambda link: (link.number, link.hash))

    def _read_versions(self) -> Iterator[SignedDocument]:
        documents = (_read_signed(text) for text in self._object.versions(limit=_MOST_BYTES))
        return (document for document in documents if document is not None)

    def is_locked(self) -> bool:
        """Return whether nobody can delete the newest version."""
        return self._object.is_locked()


def _read_signed(text: bytes) -> SignedDocument | None:
    try:
        document = read_document(text)
    except NotSigned:
        return None
    return document if isinstance(document.number, int) else None
