"""Exact numbers, percentiles, bins of histograms, and spans of time."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Double, Integer, Numeric, case, cast, func, literal

# Numbers have up to 1,000 digits and exponents up to 400: a sum of them fits by far.
WIDE: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DOWN: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_FLOOR)
_QUOTIENT: Final = Context(prec=34, Emax=MAX_EMAX, Emin=MIN_EMIN)
# For the radicand of a root: more digits than the root has.
_RADICAND: Final = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MOST_ZEROS = 20


def exact(value: Any) -> Any:
    """Return a number from Postgres as a Decimal; for a double, the value of its shortest spelling.

    The driver returns the first and the last possible instant without a time zone: it is added.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    if isinstance(value, float):
        return WIDE.plus(Decimal(repr(value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value


def quotient(total: Decimal, number: int | Decimal) -> Decimal:
    """Divide, to 34 digits."""
    return _QUOTIENT.divide(total, Decimal(number))


def variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Return the variance, to 34 digits, of a sample of at least two values.

    `total`: their sum; `squares`: the sum of their squares.
    """
    return _QUOTIENT.plus(_variance(number, total, squares))


def deviation(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Return the square root of the variance, to 34 digits."""
    return _QUOTIENT.sqrt(_variance(number, total, squares))


def _variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Compute (n·Σx² − (Σx)²) / (n·(n − 1)); the numerator is exact."""
    spread = WIDE.subtract(WIDE.multiply(number, squares), WIDE.multiply(total, total))
    return _RADICAND.divide(spread, Decimal(number * (number - 1)))


def plain(value: Any) -> Any:
    """Return a number without trailing zeros, and without an exponent if it stays short."""
    if not isinstance(value, Decimal):
        return value
    short = WIDE.normalize(value)
    exponent = short.as_tuple().exponent
    if isinstance(exponent, int) and 0 < exponent <= _MOST_ZEROS:
        return short.quantize(Decimal(1), context=WIDE)
    return WIDE.plus(short)


_ROUND: Final = (Decimal(1), Decimal(2), Decimal(5), Decimal(10))


def automatic(low: Decimal, high: Decimal, bins: int) -> tuple[Decimal, ...]:
    """Return bounds of about `bins` bins, at most two more, that contain all of [low, high].

    Their width is 1, 2 or 5 times a power of ten, and they lie on its multiples.
    """
    step = _step(WIDE.subtract(high, low), bins)
    steps = _DOWN.divide(low, step).to_integral_value(ROUND_FLOOR, _DOWN)
    bounds = [WIDE.multiply(steps, step)]
    while bounds[-1] <= high:
        bounds.append(WIDE.add(bounds[-1], step))
    return tuple(bounds)


def _step(span: Decimal, bins: int) -> Decimal:
    least = quotient(span, bins) if span else Decimal(1)
    power = Decimal(1).scaleb(least.adjusted())
    return next(step for n in _ROUND if (step := WIDE.multiply(n, power)) >= least)


def as_double(bound: Decimal) -> float:
    """Return the smallest double whose shortest spelling is not below the bound."""
    double = float(bound)
    if math.isfinite(double) and exact(double) < bound:
        return math.nextafter(double, math.inf)
    return double


METHOD: Final = "DDSketch: each value is at most 0.5 % away from the exact one"
_G: Final = Decimal("1.0099")
_LN_G: Final = math.log(1.0099)
# Numbers have exponents up to 400 and up to 1,000 digits: no bin has a number near this.
_ZERO: Final = 1_000_000
# As numerics: a numeric that is compared with a double is cast to one, and may be beyond them.
_LEAST_TAME, _MOST_TAME = (
    literal(Decimal("1e-300"), Numeric()),
    literal(Decimal("1e300"), Numeric()),
)
_DIGITS: Final = Context(prec=6)
_WIDE: Final = Context(prec=20)


def percentile(counts: Mapping[Any, int], at: Decimal) -> Any:
    """Return the smallest value that `at` per cent of the values do not exceed.

    `counts` must not be empty.
    """
    rank = max(1, math.ceil(sum(counts.values()) * at / 100))
    total = 0
    for value in sorted(counts):
        total += counts[value]
        if total >= rank:
            break
    return value


def bin_of(number: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the number of a value's bin, in SQL; larger values have larger numbers."""
    size = func.abs(number)
    tame = size.between(_LEAST_TAME, _MOST_TAME)
    # a numeric beyond the doubles has no logarithm as a double
    ln = case(
        (tame, func.ln(cast(size, Double()))), else_=cast(func.ln(cast(size, Numeric())), Double())
    )
    k = literal(_ZERO) + cast(func.ceil(ln / literal(_LN_G, Double())), Integer())
    return case((number > 0, k), (number < 0, -k), else_=0)


def value_of(number: int) -> Decimal:
    """Return the value that represents a bin."""
    if number == 0:
        return Decimal(0)
    k = abs(number) - _ZERO
    middle = _DIGITS.divide(_WIDE.multiply(2, _WIDE.power(_G, k)), 1 + _G)
    return middle if number > 0 else -middle


Unit: TypeAlias = Literal["microsecond", "second", "day", "month"]
# A Monday. Weeks are counted from it, and all spans that do not divide a day evenly.
_ORIGIN: Final = date(2000, 1, 3)
_DAY_SECONDS: Final = 86_400
_LEAST: Final[dict[Unit, timedelta]] = {
    "microsecond": timedelta(microseconds=1),
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
    """The length of a span: so many (micro)seconds, or days or months of the calendar."""

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
        raise ValueError("a time span must be longer than zero and at most a hundred years")
    return Width(int(number) * unit.count, unit.unit)


def floor(width: Width, zone: ZoneInfo, at: datetime) -> datetime:
    """Return the beginning, in UTC, of the span that contains an instant.

    Minutes and hours are those of the clock: an hour that the clock repeats is two spans. Other
    spans that divide a day evenly are counted from midnight. Days and months follow the calendar:
    a day on which the clocks change has 23 or 25 hours.
    """
    local = at.astimezone(zone)
    match width:
        case Width(_, "microsecond"):
            second = at.replace(microsecond=0)
            return second + (at - second) // width.least * width.least
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


_LAST: Final = datetime.max.replace(tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")


def _widths(unit: Unit, factor: int, *counts: int) -> tuple[Width, ...]:
    return tuple(Width(count * factor, unit) for count in counts)


_STEPS: Final = (
    *(width for power in range(6) for width in _widths("microsecond", 10**power, 1, 2, 5)),
    *_widths("second", 1, 1, 2, 5, 10, 15, 30),
    *_widths("second", 60, 1, 2, 5, 10, 15, 30),
    *_widths("second", 3600, 1, 2, 3, 6, 12),
    *_widths("day", 1, 1, 2, 7, 14),
    *_widths("month", 1, 1, 2, 3, 6),
    *(width for power in range(4) for width in _widths("month", 12 * 10**power, 1, 2, 5)),
    *_widths("month", 12, 10_000, 20_000),
)


def automatic_times(
    low: datetime, high: datetime, bins: int, *, least: timedelta = timedelta()
) -> tuple[datetime, ...]:
    """Return bounds of about `bins` bins, at most two more, that contain all of [low, high].

    `least`: how long each is at least. The last instant of the calendar is in no bin: if `high` is
    that, it is the last bound.
    """
    span = max(high - low, least * bins)
    fitting = (step for step in _STEPS if step.least * bins >= span)
    step = next(fitting) if span else Width(1, "second")
    bounds = [floor(step, _ZONE, low)]
    while bounds[-1] <= high and bounds[-1] < _LAST:
        try:
            bounds.append(following(step, _ZONE, bounds[-1]))
        except (OverflowError, ValueError):  # the bin begins beyond the calendar
            bounds.append(_LAST)
    return tuple(bounds)
