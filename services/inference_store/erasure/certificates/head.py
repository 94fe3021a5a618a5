"""The heads of the chains, where a tail that was cut can be seen: the newest signed document once
more, under one key whose versions nobody can delete while they are locked.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES
from inference_store.objects import LockedObject
from inference_store.platform.settings import BlobSettings

from .chain import Link
from .signed import NotSigned, Signed, read_signed

KEY = f"{CERTIFICATES}head"
# The newest signed checkpoint of the audit.
AUDIT_KEY = f"{CERTIFICATES}audit-head"
_MOST_BYTES = 1024 * 1024


class Head:
    """A head in the bucket. All of it blocks, and raises BlobsAway."""

    def __init__(self, settings: BlobSettings, *, lock_days: int, key: str = KEY) -> None:
        self._object = LockedObject(settings, StorageKey(settings.s3_bucket, key))
        self._lock_days = lock_days
        self._last: str | None = None

    def put(self, one: str) -> bool:
        """Write a signed document as the newest; whether it is locked."""
        until = datetime.now(UTC) + timedelta(days=self._lock_days)
        return self._object.put(
            one.encode(),
            content_type="application/json",
            until=until if self._lock_days else None,
        )

    def put_once(self, one: str) -> None:
        """As `put`, unless it is what was written last."""
        if one != self._last:
            self.put(one)
            self._last = one

    def versions(self) -> list[Signed]:
        """What was written and is there still, in order of number. The latest alone may be that
        of a chain whose end was cut and that went on; what is nothing signed is left out."""
        return sorted(self._there(), key=lambda one: int(one.document["number"]))

    def ends(self) -> list[Link]:
        """As `versions`, by number and hash alone, each once: there may be one a minute for as long
        as they are locked."""
        found = {Link(int(one.document["number"]), one.hash) for one in self._there()}
        return sorted(found, key=lambda each: (each.number, each.hash))

    def _there(self) -> Iterator[Signed]:
        found = (_read(text) for text in self._object.versions(limit=_MOST_BYTES))
        return (one for one in found if one is not None)

    def is_locked(self) -> bool:
        """Whether the bucket keeps the newest version from everyone."""
        return self._object.is_locked()


def _read(text: bytes) -> Signed | None:
    try:
        one = read_signed(text)
    except NotSigned:
        return None
    return one if isinstance(one.document.get("number"), int) else None
