"""What aggregates mean, without SQL: over the inferences themselves, one after the other."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

from tests.integration.stored import Made

_TO_34_DIGITS = Context(prec=34)
_QUARTER = timedelta(minutes=15)
_ALL_DIGITS = Context(prec=200)
Values = Callable[[Made], list[Any]]


def key(name: str, family: str) -> Values:
    """The different values of a metadata key."""

    def values(made: Made) -> list[Any]:
        leaves = made.read.leaves
        return list({leaf.value for leaf in leaves if (leaf.name, leaf.family) == (name, family)})

    return values


def labels(made: Made) -> list[str]:
    """The different labels of its predictions."""
    return list({one.label for one in made.predicted or () if one.label is not None})


def scores(made: Made) -> list[Decimal]:
    """The scores of its predictions, each."""
    return [Decimal(repr(one.score)) for one in made.predicted or () if one.score is not None]


def one(read: Callable[[Made], Any]) -> Values:
    """A property: one value or none."""
    return lambda made: [value for value in [read(made)] if value is not None]


def spans(unit: str, zone: str) -> Values:
    """When the span of the calendar began in which it came in."""

    def start(made: Made) -> list[datetime]:
        local = made.received_at.astimezone(ZoneInfo(zone))
        if unit == "minute":
            begin = local.replace(second=0, microsecond=0)
        elif unit == "hour":
            begin = local.replace(minute=0, second=0, microsecond=0)
        elif unit.startswith("PT"):
            midnight = datetime(local.year, local.month, local.day, tzinfo=ZoneInfo(zone))
            elapsed = made.received_at - midnight.astimezone(UTC)
            return [made.received_at - elapsed % {"PT15M": _QUARTER, "PT6H": 24 * _QUARTER}[unit]]
        else:
            day = local.date()
            if unit == "week":
                day -= timedelta(days=day.weekday())
            if unit == "P2D":
                day -= timedelta(days=(day - date(2000, 1, 3)).days % 2)
            if unit == "month":
                day = day.replace(day=1)
            begin = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
        return [begin.astimezone(UTC)]

    return start


def binned(values: Values, bounds: Sequence[Any]) -> Values:
    """The bounds of the bin that each value lies in."""
    edges = [None, *bounds, None]

    def bins(made: Made) -> list[Any]:
        return list({_bin(value, edges) for value in values(made)})

    return bins


def _bin(value: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
    return next((lo, hi) for lo, hi in pairwise(edges) if (hi is None or value < hi))


def grouped(made: Iterable[Made], by: Sequence[Values]) -> dict[tuple[Any, ...], list[Made]]:
    """An inference is in a group for each of its values, in that of None without any."""
    found: dict[tuple[Any, ...], list[Made]] = {}
    for each in made:
        for place in product(*(values(each) or [None] for values in by)):
            found.setdefault(place, []).append(each)
    return found if by else {(): list(made)}


def measured(  # noqa: PLR0911  (one a function)
    function: str, values: list[Any], options: dict[str, Any]
) -> Any:
    """A function of all values, as the answer has it."""
    match function:
        case "count":
            return len(values)
        case "min":
            return min(values, default=None)
        case "max":
            return max(values, default=None)
        case "sum":
            return _sum(values) if values else None
        case "mean":
            return _TO_34_DIGITS.divide(_sum(values), len(values)) if values else None
        case "variance":
            return _variance(values)
        case "stddev":
            spread = _variance(values, digits=200)
            return None if spread is None else _TO_34_DIGITS.sqrt(spread)
        case "share":
            hits = sum(value is options["expected"] for value in values)
            return _TO_34_DIGITS.divide(Decimal(hits), len(values)) if values else None
        case "percentiles":
            ordered = sorted(values)
            return [_percentile(ordered, at) for at in options["at"]]
        case "top":
            ordered = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
            kept, rest = ordered[: options["limit"]], ordered[options["limit"] :]
            return kept, sum(count for _, count in rest)
        case _:
            begin = options.get("prefix", "")
            found = sorted({each for each in values if not begin or each.startswith(begin)})
            return found[: options["limit"]], len(found) > options["limit"]


def _variance(values: list[Decimal], *, digits: int = 34) -> Decimal | None:
    """By the distances from the mean, as a schoolbook has it."""
    if len(values) < 2:
        return None
    mean = Fraction(_sum(values)) / len(values)
    distances = [Fraction(value) - mean for value in values]
    spread = sum((each * each for each in distances), Fraction(0)) / (len(values) - 1)
    return Context(prec=digits).divide(Decimal(spread.numerator), Decimal(spread.denominator))


def _sum(values: list[Decimal]) -> Decimal:
    return reduce(_ALL_DIGITS.add, values, Decimal(0))


def _percentile(ordered: list[Any], at: Decimal) -> Any:
    return ordered[max(1, math.ceil(len(ordered) * at / 100)) - 1] if ordered else None
