"""Bounds of histograms of instants: half-open bins of round widths, by UTC's clock and calendar."""

from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from .buckets import Unit, Width, floor, following

_LAST: Final = datetime.max.replace(tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")
_Step: TypeAlias = timedelta | Width
"""A part of a second, or a span of time."""


def _widths(unit: Unit, each: int, *counts: int) -> tuple[Width, ...]:
    return tuple(Width(count * each, unit) for count in counts)


_STEPS: Final[tuple[_Step, ...]] = (
    *(timedelta(microseconds=count * 10**power) for power in range(6) for count in (1, 2, 5)),
    *_widths("second", 1, 1, 2, 5, 10, 15, 30),
    *_widths("second", 60, 1, 2, 5, 10, 15, 30),
    *_widths("second", 3600, 1, 2, 3, 6, 12),
    *_widths("day", 1, 1, 2, 7, 14),
    *_widths("month", 1, 1, 2, 3, 6),
    *_widths("month", 12, *(count * 10**power for power in range(4) for count in (1, 2, 5))),
    *_widths("month", 12, 10_000, 20_000),
)
_OF_ONE: Final = Width(1, "second")


def automatic_times(low: datetime, high: datetime, bins: int) -> tuple[datetime, ...]:
    """Bounds of about so many bins, never more than two over, that hold all of [low, high].

    The last instant of the calendar is in no bin: where `high` is that, it is the last bound.
    """
    step = _step(high - low, bins)
    found = [_floor(step, low)]
    while found[-1] <= high and found[-1] < _LAST:
        found.append(_following(step, found[-1]))
    return tuple(found)


def _step(span: timedelta, bins: int) -> _Step:
    if not span:
        return _OF_ONE
    return next(each for each in _STEPS if _least(each) * bins >= span)


def _least(step: _Step) -> timedelta:
    return step if isinstance(step, timedelta) else step.least


def _floor(step: _Step, at: datetime) -> datetime:
    if isinstance(step, Width):
        return floor(step, _ZONE, at)
    second = at.replace(microsecond=0)
    return second + (at - second) // step * step


def _following(step: _Step, start: datetime) -> datetime:
    """When the bin after the one that begins at `start` begins; the last instant there is, where
    that lies beyond the calendar."""
    try:
        return start + step if isinstance(step, timedelta) else following(step, _ZONE, start)
    except (OverflowError, ValueError):
        return _LAST
