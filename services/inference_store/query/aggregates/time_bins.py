"""Bounds of histograms of instants: half-open bins of round widths, by the clock in UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from .buckets import Unit, Width, floor, following

_LAST: Final = datetime.max.replace(tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")
_Step: TypeAlias = timedelta | Width
"""A part of a second, or a span of time."""


def _widths(unit: Unit, factor: int, *counts: int) -> tuple[Width, ...]:
    return tuple(Width(count * factor, unit) for count in counts)


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
    """Return bounds of about `bins` bins, at most two more, that contain all of [low, high].

    The last instant of the calendar is in no bin: if `high` is that, it is the last bound.
    """
    step = _step(high - low, bins)
    bounds = [_floor(step, low)]
    while bounds[-1] <= high and bounds[-1] < _LAST:
        bounds.append(_following(step, bounds[-1]))
    return tuple(bounds)


def _step(span: timedelta, bins: int) -> _Step:
    if not span:
        return _OF_ONE
    return next(step for step in _STEPS if _least(step) * bins >= span)


def _least(step: _Step) -> timedelta:
    return step if isinstance(step, timedelta) else step.least


def _floor(step: _Step, at: datetime) -> datetime:
    if isinstance(step, Width):
        return floor(step, _ZONE, at)
    second = at.replace(microsecond=0)
    return second + (at - second) // step * step


def _following(step: _Step, start: datetime) -> datetime:
    """Return the beginning of the bin after the one beginning at `start`.

    It is the last instant of the calendar if the bin begins beyond it.
    """
    try:
        return start + step if isinstance(step, timedelta) else following(step, _ZONE, start)
    except (OverflowError, ValueError):
        return _LAST
