"""What of an inference goes by age, and the instants before which it has gone."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

Scope = Literal["input", "response", "inference"]
"""The datum with the rest of the request; the response blob; everything."""


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """What was received before these instants has expired; None: it is kept for ever."""

    input: datetime | None = None
    response: datetime | None = None
    inference: datetime | None = None

    def of(self, scope: Scope) -> datetime | None:
        """The one of a scope."""
        return {"input": self.input, "response": self.response, "inference": self.inference}[scope]

    def expired(self, received_at: datetime) -> tuple[Scope, ...]:
        """What of an inference has expired: all of it, or its input, its response, both, none."""
        if _before(received_at, self.inference):
            return ("inference",)
        parts: tuple[Scope, ...] = ("response", "input")
        return tuple(part for part in parts if _before(received_at, self.of(part)))


KEPT: Final = Cutoffs()


def _before(received_at: datetime, cutoff: datetime | None) -> bool:
    return cutoff is not None and received_at < cutoff
