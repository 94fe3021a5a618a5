"""Problem details: what the API refuses, and why."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong in the request: the field, what is wrong, and what is known instead."""

    path: str
    message: str
    known: tuple[str, ...]
    line: int | None = None
    """Of a filter in text, from 1."""
    column: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """The last part of the type: `unknown-metadata-key`."""
        return self.type.rpartition("#")[2]

    def describe(self) -> str:
        """Return the problem as text: status, title, detail, and what is not in the detail."""
        return "\n".join((f"{self.status} {self.title}", *self._describe_parts()))

    def _describe_parts(self) -> Iterator[str]:
        if any(fault.line for fault in self.errors):  # the message shows the place in the filter
            yield from (f"{fault.path}: {fault.message}" for fault in self.errors)
            return
        if self.detail:
            yield self.detail
        for fault in self.errors:
            if fault.message.casefold() not in self.detail.casefold():
                yield f"{fault.path}: {fault.message}"
            if fault.known and not any(name in self.detail for name in fault.known):
                yield f"known: {', '.join(fault.known[:_MOST_SHOWN])}"
