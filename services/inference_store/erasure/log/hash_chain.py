"""A hash chain: each entry has a number, and holds the hash of the entry before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol


class Chained(Protocol):
    """An entry of a chain: its number, from 1, and the hash that it names, in hexadecimal."""

    @property
    def number(self) -> int: ...

    @property
    def previous(self) -> str: ...


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """The position of an entry in a chain, and the hash that the next entry names."""

    number: int
    hash: bytes

    @property
    def next_members(self) -> dict[str, Any]:
        """The members by which the next entry names this one."""
        return {"number": self.number + 1, "previous": self.hash.hex()}

    def find_faults(self, following: Chained) -> Iterator[str]:
        """Yield why an entry does not follow this one."""
        if following.number != self.number + 1:
            yield f"it says that it is number {following.number}"
        if following.previous != self.hash.hex():
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
