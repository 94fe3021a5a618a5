"""The time to keep something: an ISO 8601 duration, or `forever`.

Weeks and shorter units are exact. Months and years go by the calendar, in UTC, and end on the
month's last day if the day does not exist (a month before March 31 is February 28 or 29).
"""

from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from inference_store.inference.events.event import LOWEST
from inference_store.inference.iso_durations import read_parts

FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class Duration:
    """Months by the calendar, and an exact time."""

    months: int
    exact: timedelta

    def before(self, now: datetime) -> datetime:
        """Return the instant that long ago; never before 2000, when no inference was received."""
        years, month = divmod(now.year * 12 + now.month - 1 - self.months, 12)
        if years < LOWEST.year:
            return LOWEST
        day = min(now.day, monthrange(years, month + 1)[1])
        try:
            return max(now.replace(year=years, month=month + 1, day=day) - self.exact, LOWEST)
        except OverflowError:
            return LOWEST

    def after(self, at: datetime) -> datetime | None:
        """Return the first instant at which `at` was that long ago; None: beyond the calendar."""
        years, month = divmod(at.year * 12 + at.month - 1 + self.months, 12)
        try:
            first = at.replace(year=years, month=month + 1, day=1) + self.exact
            estimate = first + timedelta(days=at.day - 1)
            # the day may not exist there: months end on other days, by three at most
            days = (estimate + timedelta(days=n) for n in range(-4, 5))
            return next((day for day in days if self.before(day) >= at), None)
        except (OverflowError, ValueError):
            return None


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> Duration | None:
    """Return a duration; None for `forever`. Raises ValueError for any other text."""
    if text == FOREVER:
        return None
    parts = read_parts(text)
    if parts is None:
        raise ValueError(
            f"{text[:64]!r} is neither an ISO 8601 duration (like P30D, PT12H or P1Y6M)"
            " nor 'forever'"
        )
    years, months, exact = parts
    return Duration(years * 12 + months, exact)
