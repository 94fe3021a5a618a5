"""Spans of time by a time zone's calendar, or of a fixed number of seconds."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

Unit: TypeAlias = Literal["second", "day", "month"]
# A Monday. Weeks are counted from it, and all spans that do not divide a day evenly.
_ORIGIN: Final = date(2000, 1, 3)
_DAY_SECONDS: Final = 86_400
_LEAST: Final[dict[Unit, timedelta]] = {
    "second": timedelta(seconds=1),
    "day": timedelta(days=1),
    "month": timedelta(days=28),
}
_ISO: Final = re.compile(r"P(?:([0-9]{1,9})([YMWD])|(T[0-9]{1,9})([HMS]))", re.ASCII)
_MOST: Final = timedelta(days=36_525)
PATTERN: Final = "^(minute|hour|day|week|month|P[0-9]{1,9}[YMWD]|PT[0-9]{1,9}[HMS])$"
"""The texts that `width_of` reads, as a regular expression of ECMA 262."""


class TooManyBuckets(Exception):
    """There would be more spans of time than allowed."""


@dataclass(frozen=True, slots=True)
class Width:
    """The length of a span: a number of seconds, or of days or months of the calendar."""

    count: int
    unit: Unit

    @property
    def least(self) -> timedelta:
        """The shortest length of such a span, apart from changes of the clocks."""
        return self.count * _LEAST[self.unit]


_NAMED: Final = {
    "minute": Width(60, "second"),
    "hour": Width(3600, "second"),
    "day": Width(1, "day"),
    "week": Width(7, "day"),
    "month": Width(1, "month"),
}
_OF_ISO: Final = {
    **{"Y": Width(12, "month"), "M": Width(1, "month"), "W": Width(7, "day")},
    **{"D": Width(1, "day"), "TH": Width(3600, "second"), "TM": Width(60, "second")},
    "TS": Width(1, "second"),
}


@lru_cache(maxsize=1024)
def width_of(text: str) -> Width:
    """Return the width for a name or an ISO 8601 duration of one unit. Raises ValueError."""
    if text in _NAMED:
        return _NAMED[text]
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(
            f"it is {', '.join(_NAMED)} or an ISO 8601 duration of one unit, such as PT15M, PT6H,"
            " P2W or P3M"
        )
    number, letter = (match[1], match[2]) if match[1] else (match[3][1:], f"T{match[4]}")
    unit = _OF_ISO[letter]
    if not 0 < int(number) * unit.least.total_seconds() <= _MOST.total_seconds():
        raise ValueError("a span of time is longer than nothing, and not over a hundred years")
    return Width(int(number) * unit.count, unit.unit)


def floor(width: Width, zone: ZoneInfo, at: datetime) -> datetime:
    """Return the beginning, in UTC, of the span that contains an instant.

    Minutes and hours are those of the clock: an hour that the clock repeats is two spans. Other
    spans that divide a day evenly are counted from midnight. Days and months follow the calendar:
    a day on which the clocks change has 23 or 25 hours.
    """
    local = at.astimezone(zone)
    match width:
        case Width(60, "second"):
            start = local.replace(second=0, microsecond=0)
        case Width(3600, "second"):
            start = local.replace(minute=0, second=0, microsecond=0)
        case Width(count, "second"):
            origin = local.date() if _DAY_SECONDS % count == 0 else _ORIGIN
            return _counted(at, _midnight(origin, zone), count)
        case Width(count, "day"):
            start = _midnight(_first_of_days(local.date(), count), zone)
        case _:
            start = _midnight(_first_of_months(local.date(), width.count), zone)
    return start.astimezone(UTC)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the day's midnight: the first one, if the clocks are set back over it."""
    return datetime.combine(day, time.min, zone)


def _counted(at: datetime, origin: datetime, seconds: int) -> datetime:
    # In UTC: within one zone Python subtracts the clock times, whatever the offsets are.
    begin, width = origin.astimezone(UTC), timedelta(seconds=seconds)
    return begin + (at - begin) // width * width


def _first_of_days(day: date, count: int) -> date:
    origin = _ORIGIN.toordinal()
    return date.fromordinal(max((day.toordinal() - origin) // count * count + origin, 1))


def _first_of_months(day: date, count: int) -> date:
    year, month = divmod((day.year * 12 + day.month - 1) // count * count, 12)
    return date(max(year, 1), month + 1, 1)


def following(width: Width, zone: ZoneInfo, start: datetime) -> datetime:
    """Return the beginning of the span that follows the one beginning at `start`."""
    later = start + width.least
    while (begin := floor(width, zone, later)) <= start:
        later += width.least
    return begin


def starts(
    width: Width, zone: ZoneInfo, first: datetime, last: datetime, *, most: int
) -> list[datetime]:
    """Return the beginning of each span that touches [first, last], and of the span after them.

    Raises TooManyBuckets.
    """
    if (last - first) / width.least > 2 * most:
        raise TooManyBuckets
    begins = [floor(width, zone, first)]
    while begins[-1] <= last:
        if len(begins) > most:
            raise TooManyBuckets
        begins.append(following(width, zone, begins[-1]))
    return begins
