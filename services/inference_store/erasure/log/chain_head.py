"""The head of a chain in the bucket, by which a missing end is noticed.

It is a copy of the newest signed document, under one key whose versions nobody can delete while
they are locked.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES
from inference_store.objects import LockedObject
from inference_store.platform.settings import BlobSettings

from .hash_chain import Link
from .signed_document import NotSigned, SignedDocument, read_document

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
