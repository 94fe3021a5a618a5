"""What was computed, as it is answered."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from .asked import Bound, Measure
from .exact import deviation, plain, quotient, variance
from .partial import PartialSums
from .sketch import METHOD, percentile, value_of

EXACT_METHOD: Final = "exact"


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Groups in order: `{"key": {…}, "measures": {…}}`. `others`: what the limit left out."""

    groups: Sequence[Mapping[str, Any]]
    others: Mapping[str, int]
    approximate: bool
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of one measure in one group. `counts`: of values or of bins."""

    inferences: int
    sums: PartialSums
    counts: Counter[Any]
    bounds: Sequence[Bound] = ()
    approximate: bool = False


def shown(measure: Measure, found: Found) -> Any:
    """A measure's value, for JSON."""
    return _SHOWN[measure.function.name](measure, found)


def sort_value(measure: Measure, value: Any) -> Any:
    """What groups are ordered by: of a list the first percentile, of others their length."""
    if isinstance(value, Mapping):
        items = value.get("values", value.get("bins", ()))
        first = measure.function.name == "percentiles" and items
        return items[0]["value"] if first else len(items)
    return value


def bin_shown(number: int, bounds: Sequence[Bound]) -> dict[str, Any]:
    """The bounds of a bin: it is from the one on, up to the other; null: there is no bound."""
    return {
        "from": plain(bounds[number - 1]) if number > 0 else None,
        "to": plain(bounds[number]) if number < len(bounds) else None,
    }


def _count(measure: Measure, found: Found) -> int:
    return found.inferences if measure.of is None else found.sums.number


def _mean(_: Measure, found: Found) -> Any:
    sums = found.sums
    return plain(quotient(sums.total, sums.number)) if sums.number else None


def _variance(_: Measure, found: Found) -> Any:
    sums = found.sums
    return plain(variance(sums.number, sums.total, sums.squares)) if sums.number > 1 else None


def _deviation(_: Measure, found: Found) -> Any:
    sums = found.sums
    return plain(deviation(sums.number, sums.total, sums.squares)) if sums.number > 1 else None


def _share(measure: Measure, found: Found) -> Any:
    sums = found.sums
    number = sums.true if measure.expected else sums.number - sums.true
    return plain(quotient(Decimal(number), sums.number)) if sums.number else None


def _percentiles(measure: Measure, found: Found) -> Any:
    values = [{"at": plain(at), "value": _percentile(found, at)} for at in measure.at]
    method = METHOD if found.approximate else EXACT_METHOD
    return {"values": values, "approximate": found.approximate, "method": method}


def _percentile(found: Found, at: Decimal) -> Any:
    if not found.counts:
        return None
    value = percentile(found.counts, at)
    if found.approximate:
        return plain(min(max(value_of(value), found.sums.low), found.sums.high))
    return plain(value)


def _histogram(_: Measure, found: Found) -> Any:
    counts, last = found.counts, len(found.bounds)
    bins = [{**bin_shown(n, found.bounds), "count": counts[n]} for n in range(1, last)]
    return {"bins": bins, "below": counts[0], "above": counts[last] if last else 0}


def _top(measure: Measure, found: Found) -> Any:
    ordered = sorted(found.counts.items(), key=lambda item: (-item[1], item[0]))
    kept = ordered[: measure.limit]
    values = [{"value": plain(value), "count": count} for value, count in kept]
    return {"values": values, "others": sum(count for _, count in ordered[measure.limit :])}


def _distinct(measure: Measure, found: Found) -> Any:
    begins = (each for each in found.counts if not measure.prefix or _begins(each, measure.prefix))
    ordered = sorted(begins)
    values = [plain(each) for each in ordered[: measure.limit]]
    return {"values": values, "more": len(ordered) > measure.limit}


def _begins(value: Any, prefix: str) -> bool:
    return isinstance(value, str) and value.startswith(prefix)


_SHOWN: Final[Mapping[str, Callable[[Measure, Found], Any]]] = {
    "count": _count,
    "min": lambda _, found: plain(found.sums.low),
    "max": lambda _, found: plain(found.sums.high),
    "sum": lambda _, found: plain(found.sums.total) if found.sums.number else None,
    "mean": _mean,
    "variance": _variance,
    "stddev": _deviation,
    "share": _share,
    "percentiles": _percentiles,
    "histogram": _histogram,
    "top": _top,
    "distinct": _distinct,
}
