"""ISO 8601 durations: years and months by the calendar, weeks and below exact."""

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

_N: Final = r"(\d{1,9})"
_ISO: Final = re.compile(
    rf"P(?=.)(?:{_N}Y)?(?:{_N}M)?(?:{_N}W)?(?:{_N}D)?"
    rf"(?:T(?=.)(?:{_N}H)?(?:{_N}M)?(?:(\d{{1,9}}(?:\.\d{{1,6}})?)S)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Duration:
    """Months by the calendar, in UTC, then an exact time: weeks and smaller, at most
    `timedelta.max`."""

    months: int
    exact: timedelta

    def after(self, at: datetime) -> datetime:
        """Return the instant this duration after another. Raises OverflowError beyond the
        calendar."""
        return _months_later(at, self.months) + self.exact

    def before(self, at: datetime) -> datetime:
        """Return the instant this duration before another. Raises OverflowError beyond the
        calendar."""
        return _months_later(at, -self.months) - self.exact


def _months_later(at: datetime, months: int) -> datetime:
    """Return the instant months later, on the month's last day if the day does not exist."""
    year, month = divmod(at.year * 12 + at.month - 1 + months, 12)
    if not MINYEAR <= year <= MAXYEAR:
        raise OverflowError(f"there is no year {year}")
    day = min(at.day, monthrange(year, month + 1)[1])
    return at.replace(year=year, month=month + 1, day=day)


@lru_cache(maxsize=1024)
def read_duration(text: str) -> Duration | None:
    """Return a duration such as P1Y6M or PT12H; None if the text is not one."""
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    years, months, weeks, days, hours, minutes = (int(part or 0) for part in match.groups()[:6])
    microseconds = int(Decimal(match[7] or 0) * 1_000_000)
    try:
        exact = timedelta(
            weeks=weeks, days=days, hours=hours, minutes=minutes, microseconds=microseconds
        )
    except OverflowError:
        exact = timedelta.max
    return Duration(years * 12 + months, exact)
