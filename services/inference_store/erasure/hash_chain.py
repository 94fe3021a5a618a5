"""A hash chain: each entry has a number, and holds the hash of the entry before it. Its copy in the
bucket has an object for each entry.

Hashes cover JSON in a canonical form, the bytes that everybody reads.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs


def canonical(value: Any) -> str:
    """Return JSON with sorted names, no spaces, and ASCII alone. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def compute_hash(value: Any, *, after: bytes = b"") -> bytes:
    """Return the SHA-256 over `after` (a salt, or the hash of the entry before) and a value."""
    return sha256(after + canonical(value).encode()).digest()


def format_instant(at: datetime | None) -> str | None:
    """Return an instant by RFC 3339, in UTC, with microseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """The position of an entry in a chain, and the hash that the next entry names."""

    number: int
    hash: bytes

    @property
    def members(self) -> dict[str, Any]:
        """It as JSON."""
        return {"number": self.number, "hash": self.hash.hex()}

    @property
    def next_members(self) -> dict[str, Any]:
        """The members by which the next entry names this one."""
        return {"number": self.number + 1, "previous": self.hash.hex()}

    def find_faults(self, number: object, previous: object) -> Iterator[str]:
        """Yield why the entry that says these of itself does not follow this one."""
        if number != self.number + 1:
            yield f"it says that it is number {number}"
        if previous != self.hash.hex():
            yield "it names another hash of the one before it"


START: Final = Link(0, b"")
"""The link before the first entry."""


@dataclass(frozen=True, slots=True)
class VerificationFailure:
    """A document or an entry that is not as it was written.

    `number`: which one, None: the chain itself; `kind`: what is numbered.
    """

    number: int | None
    reason: str
    kind: str = "entry"

    def __str__(self) -> str:
        return self.reason if self.number is None else f"{self.kind} {self.number}: {self.reason}"


DIGITS: Final = 10
MOST_BYTES: Final = 64 * 1024 * 1024


class NumberedObjects:
    """Reads and writes the entries of one chain, or the pieces of one list.

    All of it blocks, and raises ObjectStoreUnavailable.
    """

    def __init__(
        self,
        blobs: Blobs,
        prefix: str,
        *,
        digits: int = DIGITS,
        content_type: str = "application/json",
    ) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self.prefix = prefix
        self._digits = digits
        self._content_type = content_type

    @property
    def location(self) -> str:
        """Their location, for messages."""
        return f"s3://{self._bucket}/{self.prefix}"

    def key(self, number: int) -> StorageKey:
        """Return the key of the entry with a number."""
        return StorageKey(self._bucket, f"{self.prefix}{number:0{self._digits}}")

    def get(self, number: int) -> bytes | None:
        """Return the entry with a number; None if there is none."""
        try:
            return self._blobs.get(self.key(number), limit=2 * MOST_BYTES)
        except BlobMissing:
            return None

    def put_new(self, number: int, data: bytes) -> bool:
        """Write an entry; return False, and write nothing, if the number is taken.

        If the store does not support conditional writes, only the check before the write prevents
        that an entry is overwritten.
        """
        key = self.key(number)
        return not self._blobs.exists(key) and self._blobs.put_new(
            key, data, content_type=self._content_type
        )

    def replace(self, number: int, data: bytes) -> str | None:
        """Overwrite an entry and delete its older versions; return why one of them stays, if so."""
        key = self.key(number)
        faults = self._blobs.replace(key, data, content_type=self._content_type)
        return f"{key}: {faults[0].code} {faults[0].message}" if faults else None

    def find_name_after(self, number: int) -> str | None:
        """Return the first name after that of a number, without the prefix; None if there is
        none."""
        after = self.key(number).key
        page = self._blobs.page(self._bucket, self.prefix, after=after, limit=1)
        return page[0].place.key.removeprefix(self.prefix) if page else None
