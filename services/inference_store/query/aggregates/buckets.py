"""Spans of time: where each one begins, by a time zone's calendar or every so many seconds."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

Unit: TypeAlias = Literal["second", "day", "month"]
# A Monday: weeks begin there, and every span that no day is a multiple of.
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
"""What `width_of` reads, as a regular expression of ECMA 262."""


class TooManyBuckets(Exception):
    """There would be more than were allowed."""


@dataclass(frozen=True, slots=True)
class Width:
    """How long a span is: so many seconds, days or months of the calendar."""

    count: int
    unit: Unit

    @property
    def least(self) -> timedelta:
        """The shortest that such a span can be, but for a change of clocks."""
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
    """The width that a name or an ISO 8601 duration of one unit says. Raises ValueError."""
    if text in _NAMED:
        return _NAMED[text]
    found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError(
            f"it is {', '.join(_NAMED)} or an ISO 8601 duration of one unit, such as PT15M, PT6H,"
            " P2W or P3M"
        )
    number, letter = (found[1], found[2]) if found[1] else (found[3][1:], f"T{found[4]}")
    unit = _OF_ISO[letter]
    if not 0 < int(number) * unit.least.total_seconds() <= _MOST.total_seconds():
        raise ValueError("a span of time is longer than nothing, and not over a hundred years")
    return Width(int(number) * unit.count, unit.unit)


def floor(width: Width, zone: ZoneInfo, at: datetime) -> datetime:
    """When the span began in which an instant lies, in UTC.

    Minutes and hours are those of the clock: an hour that it repeats is two. Other spans that a
    day is a multiple of count from midnight. Days and months go by the calendar: the day of a
    change of clocks has 23 or 25 hours.
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
    """The first one, where clocks go back over it."""
    return datetime.combine(day, time.min, zone)


def _counted(at: datetime, origin: datetime, seconds: int) -> datetime:
    # In UTC: between two times of one zone Python takes the difference of their clocks.
    begin, width = origin.astimezone(UTC), timedelta(seconds=seconds)
    return begin + (at - begin) // width * width


def _first_of_days(day: date, count: int) -> date:
    origin = _ORIGIN.toordinal()
    return date.fromordinal(max((day.toordinal() - origin) // count * count + origin, 1))


def _first_of_months(day: date, count: int) -> date:
    year, month = divmod((day.year * 12 + day.month - 1) // count * count, 12)
    return date(max(year, 1), month + 1, 1)


def following(width: Width, zone: ZoneInfo, start: datetime) -> datetime:
    """When the span after the one that begins at `start` begins."""
    later = start + width.least
    while (found := floor(width, zone, later)) <= start:
        later += width.least
    return found


def starts(
    width: Width, zone: ZoneInfo, first: datetime, last: datetime, *, most: int
) -> list[datetime]:
    """When each span begins that touches [first, last], and when the one after them does.

    Raises TooManyBuckets.
    """
    if (last - first) / width.least > 2 * most:
        raise TooManyBuckets
    found = [floor(width, zone, first)]
    while found[-1] <= last:
        if len(found) > most:
            raise TooManyBuckets
        found.append(following(width, zone, found[-1]))
    return found
