"""A hash chain: each entry has a number, and holds the hash of the entry before it.

Hashes cover JSON in a canonical form, the bytes that everybody reads.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final


def canonical(value: Any) -> str:
    """Return JSON with sorted names, no spaces, and ASCII alone. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def compute_hash(value: Any, *, after: bytes = b"") -> bytes:
    """Return the SHA-256 over `after` (a salt, or the hash of the entry before) and a value."""
    return sha256(after + canonical(value).encode()).digest()


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
