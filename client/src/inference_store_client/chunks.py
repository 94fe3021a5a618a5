"""Pieces of a file, as a stream delivers them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .commands import Deliver, Outcome, Steps


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that come after those before, and how many inferences end in them."""

    content: bytes = field(repr=False)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """What came so far is void, because the columns have changed or bytes were damaged: the file
    begins again."""


RESTART: Final = Restart()


def accept_delivered(steps: Steps[None], accept: Callable[[Any], None]) -> Steps[None]:
    """Perform steps, but hand what they deliver to a function."""
    outcome: Outcome = None
    while True:
        try:
            command = steps.send(outcome)
        except StopIteration:
            return
        if isinstance(command, Deliver):
            outcome = None
            for item in command.items:
                accept(item)
        else:
            outcome = yield command
