"""Spans of time: where each one begins, by a time zone's calendar or every so many seconds."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

_Unit: TypeAlias = Literal["second", "day", "month"]
_MIDNIGHT: Final = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0, "fold": 0}
# A Monday: weeks begin there, and every span that no day is a multiple of.
_ORIGIN: Final = date(2000, 1, 3)
_DAY_SECONDS: Final = 86_400
_LEAST: Final[dict[_Unit, timedelta]] = {
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
    unit: _Unit

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
            return _counted(
                at, _midnight(local if _DAY_SECONDS % count == 0 else None, zone), count
            )
        case Width(count, "day"):
            start = _of_days(local, count)
        case _:
            start = _of_months(local, width.count)
    return start.astimezone(UTC)


def _midnight(local: datetime | None, zone: ZoneInfo) -> datetime:
    """That of a day, the first of two where clocks go back over it; None: the origin's."""
    day = local or datetime(_ORIGIN.year, _ORIGIN.month, _ORIGIN.day, tzinfo=zone)
    return day.replace(**_MIDNIGHT)  # type: ignore[arg-type]


def _counted(at: datetime, origin: datetime, seconds: int) -> datetime:
    # In UTC: between two times of one zone Python takes the difference of their clocks.
    begin, width = origin.astimezone(UTC), timedelta(seconds=seconds)
    return begin + (at - begin) // width * width


def _of_days(local: datetime, count: int) -> datetime:
    origin = _ORIGIN.toordinal()
    first = (local.toordinal() - origin) // count * count + origin
    day = date.fromordinal(max(first, 1))
    return local.replace(year=day.year, month=day.month, day=day.day, **_MIDNIGHT)  # type: ignore[arg-type]


def _of_months(local: datetime, count: int) -> datetime:
    year, month = divmod((local.year * 12 + local.month - 1) // count * count, 12)
    return local.replace(year=max(year, 1), month=month + 1, day=1, **_MIDNIGHT)  # type: ignore[arg-type]


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
