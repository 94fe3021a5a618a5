"""Spans of a time zone's calendar: where each minute, hour, day, week or month begins."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from .asked import Unit

_MIDNIGHT: Final = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0, "fold": 0}


class TooManyBuckets(Exception):
    """There would be more than were allowed."""


def _minute(local: datetime) -> datetime:
    return local.replace(second=0, microsecond=0)


def _hour(local: datetime) -> datetime:
    return local.replace(minute=0, second=0, microsecond=0)


def _day(local: datetime) -> datetime:
    # the first midnight, where clocks go back over it
    return local.replace(**_MIDNIGHT)  # type: ignore[arg-type]


def _week(local: datetime) -> datetime:
    return _day(local) - timedelta(days=local.weekday())


def _month(local: datetime) -> datetime:
    return _day(local).replace(day=1)


_FLOORS: Final[dict[Unit, tuple[Callable[[datetime], datetime], timedelta]]] = {
    "minute": (_minute, timedelta(minutes=1)),
    "hour": (_hour, timedelta(hours=1)),
    "day": (_day, timedelta(days=1)),
    "week": (_week, timedelta(days=7)),
    "month": (_month, timedelta(days=28)),
}


def floor(unit: Unit, zone: ZoneInfo, at: datetime) -> datetime:
    """When the span began in which an instant lies, in UTC.

    An hour that the clocks repeat is two; the day of such a change has 23 or 25 of them.
    """
    return _FLOORS[unit][0](at.astimezone(zone)).astimezone(UTC)


def following(unit: Unit, zone: ZoneInfo, start: datetime) -> datetime:
    """When the span after the one that begins at `start` begins."""
    step = _FLOORS[unit][1]
    later = start + step
    while (found := floor(unit, zone, later)) <= start:
        later += step
    return found


def starts(
    unit: Unit, zone: ZoneInfo, first: datetime, last: datetime, *, most: int
) -> list[datetime]:
    """When each span begins that touches [first, last], and when the one after them does.

    Raises TooManyBuckets.
    """
    if (last - first) / _FLOORS[unit][1] > 2 * most:
        raise TooManyBuckets
    found = [floor(unit, zone, first)]
    while found[-1] <= last:
        if len(found) > most:
            raise TooManyBuckets
        found.append(following(unit, zone, found[-1]))
    return found
