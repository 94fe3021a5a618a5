"""Aggregates calculated in Python, in a loop over the inferences."""

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

from tests.integration.query.typed_rows import derive_facts
from tests.integration.stored_inferences import NewInference

_TO_34_DIGITS = Context(prec=34)
_QUARTER = timedelta(minutes=15)
_ALL_DIGITS = Context(prec=3_000)
Values = Callable[[NewInference], list[Any]]


def read_values(name: str, family: Any) -> Values:
    """Return a reader of the distinct values of a property, or of a metadata key."""

    def values(inference: NewInference) -> list[Any]:
        facts = derive_facts(inference)
        found: Sequence[Any] = facts.properties.get(name) or facts.metadata_values(name, family)
        if family == "number":
            return list({Decimal(repr(one) if isinstance(one, float) else one) for one in found})
        return list(set(found))

    return values


def read_labels(inference: NewInference) -> list[str]:
    return list({one.label for one in inference.predicted or () if one.label is not None})


def read_scores(inference: NewInference) -> list[Decimal]:
    scores = [prediction.score for prediction in inference.predicted or ()]
    return [Decimal(repr(score)) for score in scores if score is not None]


def find_span_start(unit: str, zone: str) -> Values:
    """Return a reader of the start of the calendar span in which an inference was received."""

    def start(inference: NewInference) -> list[datetime]:
        local = inference.received_at.astimezone(ZoneInfo(zone))
        if unit == "minute":
            begin = local.replace(second=0, microsecond=0)
        elif unit == "hour":
            begin = local.replace(minute=0, second=0, microsecond=0)
        elif unit.startswith("PT"):
            midnight = datetime(local.year, local.month, local.day, tzinfo=ZoneInfo(zone))
            elapsed = inference.received_at - midnight.astimezone(UTC)
            return [
                inference.received_at - elapsed % {"PT15M": _QUARTER, "PT6H": 24 * _QUARTER}[unit]
            ]
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


def find_bins(values: Values, bounds: Sequence[Any]) -> Values:
    """Return a reader of the bounds of the bins in which the values lie."""
    edges = [None, *bounds, None]

    def bins(inference: NewInference) -> list[Any]:
        return list({_bin(value, edges) for value in values(inference)})

    return bins


def _bin(value: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
    return next((lo, hi) for lo, hi in pairwise(edges) if (hi is None or value < hi))


def group_inferences(
    inferences: Iterable[NewInference], by: Sequence[Values]
) -> dict[tuple[Any, ...], list[NewInference]]:
    groups: dict[tuple[Any, ...], list[NewInference]] = {}
    for inference in inferences:
        for key in product(*(values(inference) or [None] for values in by)):
            groups.setdefault(key, []).append(inference)
    return groups if by else {(): list(inferences)}


def calculate(  # noqa: PLR0911  (one return for each function)
    function: str, values: list[Any], options: dict[str, Any]
) -> Any:
    """Return a function of all values, in the form of an answer."""
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
            shown, rest = ordered[: options["limit"]], ordered[options["limit"] :]
            return shown, sum(count for _, count in rest)
        case _:
            begin = options.get("prefix", "")
            texts = sorted({text for text in values if not begin or text.startswith(begin)})
            return texts[: options["limit"]], len(texts) > options["limit"]


def _variance(values: list[Decimal], *, digits: int = 34) -> Decimal | None:
    """Calculate the variance by its textbook definition."""
    if len(values) < 2:
        return None
    mean = Fraction(_sum(values)) / len(values)
    distances = [Fraction(value) - mean for value in values]
    spread = sum((distance * distance for distance in distances), Fraction(0)) / (len(values) - 1)
    return Context(prec=digits).divide(Decimal(spread.numerator), Decimal(spread.denominator))


def _sum(values: list[Decimal]) -> Decimal:
    return reduce(_ALL_DIGITS.add, values, Decimal(0))


def _percentile(ordered: list[Any], at: Decimal) -> Any:
    return ordered[max(1, math.ceil(len(ordered) * at / 100)) - 1] if ordered else None
