"""The parts of an inference that expire by age, and the times before which they have."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeVar
from uuid import UUID

_Cutoff = TypeVar("_Cutoff", datetime, UUID)
ErasureScope = Literal["input", "response", "inference"]
"""The datum with the rest of the request, the response blob, or everything."""


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The times before which each part has expired; None: it is kept for ever."""

    input: datetime | None = None
    response: datetime | None = None
    inference: datetime | None = None

    def of(self, scope: ErasureScope) -> datetime | None:
        """Return the cutoff of a scope."""
        return {"input": self.input, "response": self.response, "inference": self.inference}[scope]

    def find_expired(self, received_at: datetime) -> tuple[ErasureScope, ...]:
        """Return what of an inference has expired: all of it, or its input, its response, both, or
        nothing."""
        if _is_before(received_at, self.inference):
            return ("inference",)
        parts: tuple[ErasureScope, ...] = ("response", "input")
        return tuple(part for part in parts if _is_before(received_at, self.of(part)))

    def meet(self, other: "Cutoffs") -> "Cutoffs":
        """Return cutoffs by which only that expires which has expired by both."""
        return Cutoffs(
            find_earlier(self.input, other.input),
            find_earlier(self.response, other.response),
            find_earlier(self.inference, other.inference),
        )


KEEP_ALL: Final = Cutoffs()


def find_earlier(first: _Cutoff | None, second: _Cutoff | None) -> _Cutoff | None:
    """Return the earlier of two cutoffs; None, by which nothing expires, is before all."""
    return None if first is None or second is None else min(first, second)


def _is_before(received_at: datetime, cutoff: datetime | None) -> bool:
    return cutoff is not None and received_at < cutoff
