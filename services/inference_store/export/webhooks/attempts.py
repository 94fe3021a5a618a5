"""When the next attempt to reach a receiver comes: later each time, for three days."""

import random
from typing import Final

_MINUTE, _HOUR = 60.0, 3600.0
DELAYS: Final = (
    *(5.0, 5 * _MINUTE, 30 * _MINUTE),
    *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24)),
)
"""Seconds after the first failed attempt, the second and so on, as Standard Webhooks suggests; 75
hours in all."""
_JITTER: Final = 0.1
_LONGEST_ASKED: Final = 24 * _HOUR


def compute_delay(failed: int, *, asked: float | None = None) -> float | None:
    """Return the seconds until the next attempt; None: there is none.

    `failed`: attempts so far, this one too. `asked`: what the receiver asked for (`Retry-After`).
    """
    if failed > len(DELAYS):
        return None
    delay = DELAYS[failed - 1] * random.uniform(1 - _JITTER, 1 + _JITTER)
    return max(delay, min(asked or 0.0, _LONGEST_ASKED))
