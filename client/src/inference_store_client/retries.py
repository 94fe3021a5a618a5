"""When a read is sent again, and after how long."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from .errors import StoreError

_MOST_DOUBLED: Final = 100
"""So many times a wait is doubled: more than any is worth, and fewer than a float takes."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a read is sent again, and how long it waits before; `attempts=1`: never again.

    The wait doubles each time, up to `longest_wait_seconds`, and is shortened at random, so that
    many clients do not return at once. `Retry-After` is honoured: if it is longer than
    `longest_retry_after_seconds`, the refusal is raised at once. A stream that makes progress
    begins to count again.
    """

    attempts: int = 6
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0
    longest_retry_after_seconds: float = 300.0
    at_first_contact: bool = True
    """Whether a refused connection is tried again before the store has ever answered."""

    def find_wait(self, error: StoreError, attempt: int) -> float | None:
        """Return how long to wait before the next attempt; None: there is none.

        `attempt`: the number of the one that failed, from 1.
        """
        least = error.retry_after_seconds
        is_too_long = least > self.longest_retry_after_seconds
        if not error.is_transient or is_too_long or attempt >= self.attempts:
            return None
        doubled = self.first_wait_seconds * 2.0 ** min(attempt - 1, _MOST_DOUBLED)
        wait = min(doubled, self.longest_wait_seconds)
        return max(wait * random.uniform(0.5, 1.0), least)


DEFAULT_RETRIES: Final = Retries(at_first_contact=False)
"""Of who gives none: where nothing has answered yet, the address is probably wrong."""


def read_retry_after(text: str, *, now: datetime | None = None) -> float:
    """Return the seconds that `Retry-After` asks for, as a number or as a date; 0 for none."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
