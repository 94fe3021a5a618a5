"""The parts of an inference that expire by age, and the times before which they have."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

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


KEEP_ALL: Final = Cutoffs()


def _is_before(received_at: datetime, cutoff: datetime | None) -> bool:
    return cutoff is not None and received_at < cutoff
