"""The functions: one table. Validation, SQL, documentation and tests read it.

What a function needs to know about the values decides which statements are run: `sums` (the count,
the smallest, the largest, the sum, the sum of the squares, the count of true ones), `values` (each
value and its count), `bins` (the count between two bounds), or nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from inference_store.inference.nearest import nearest

Kind: TypeAlias = Literal["number", "string", "bool", "timestamp"]
Needs: TypeAlias = Literal["sums", "values", "bins", "percentiles"]
Sum: TypeAlias = Literal["low", "high", "squares", "total", "true"]
_ALL: Final[frozenset[Kind]] = frozenset({"number", "string", "bool", "timestamp"})
_ORDERED: Final[frozenset[Kind]] = frozenset({"number", "string", "timestamp"})
_BINNED: Final[frozenset[Kind]] = frozenset({"number", "timestamp"})
_NUMBER: Final[frozenset[Kind]] = frozenset({"number"})
_BOOL: Final[frozenset[Kind]] = frozenset({"bool"})


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function. `kinds`: the kinds allowed for `of`; `options`: its own fields of a measure."""

    name: str
    meaning: str
    kinds: frozenset[Kind]
    needs: Needs
    sums: frozenset[Sum] = frozenset()
    options: tuple[str, ...] = ()
    without_of: bool = False
    """Whether `of` may be left out."""
    elsewhere: tuple[str, ...] = ()
    """Its names in other systems: an error suggests the function for them."""


def _sums(*names: Sum) -> frozenset[Sum]:
    return frozenset(names)


def _table(*entries: Aggregate) -> Mapping[str, Aggregate]:
    return MappingProxyType({entry.name: entry for entry in entries})


# fmt: off
AGGREGATES: Final = _table(
    Aggregate("count", "how many inferences; with `of`: how many values it has",
              _ALL, "sums", without_of=True, elsewhere=("size", "n")),
    Aggregate("min", "the smallest value, the earliest, the first in code-point order",
              _ORDERED, "sums", _sums("low"), elsewhere=("minimum", "first", "earliest")),
    Aggregate("max", "the largest value, the latest, the last in code-point order",
              _ORDERED, "sums", _sums("high"), elsewhere=("maximum", "last", "latest")),
    Aggregate("sum", "the exact sum; null of no values", _NUMBER, "sums", _sums("total"),
              elsewhere=("total",)),
    Aggregate("mean", "the exact sum by the number of values, to 34 digits; null of no values",
              _NUMBER, "sums", _sums("total"), elsewhere=("avg", "average")),
    Aggregate("variance", "the variance of a sample (the sum of squared distances from the mean, by"
              " one less than the number of values), to 34 digits; null of fewer than two",
              _NUMBER, "sums", _sums("total", "squares"), elsewhere=("var", "var_samp")),
    Aggregate("stddev", "the standard deviation of a sample: the variance's root, to 34 digits",
              _NUMBER, "sums", _sums("total", "squares"), elsewhere=("std", "stddev_samp")),
    Aggregate("share", "the share of values that are true, or what `is` says; null of no values",
              _BOOL, "sums", _sums("true"), ("is",), elsewhere=("ratio", "rate", "fraction")),
    Aggregate("percentiles", "for each of `at`: the smallest value that so many per cent of the"
              " values do not exceed", _NUMBER, "percentiles", _sums("low", "high"), ("at",),
              elsewhere=("median", "quantile", "quantiles", "p50", "p90", "p95", "p99")),
    Aggregate("histogram", "how many values lie between given `bounds`, or between bounds made"
              " of about so many `bins`", _BINNED, "bins", _sums("low", "high"),
              ("bins", "bounds"), elsewhere=("hist", "buckets")),
    Aggregate("top", "the `limit` most frequent values with their counts, and `others`",
              _ALL, "values", options=("limit",), elsewhere=("mode", "terms", "frequencies")),
    Aggregate("distinct", "the first `limit` different values that begin with `prefix`, in order",
              _ORDERED, "values", options=("limit", "prefix"), elsewhere=("unique", "values")),
)
# fmt: on


def nearest_of(name: str) -> list[str]:
    """Return the functions that an unknown name probably stands for."""
    meant = [entry.name for entry in AGGREGATES.values() if name.lower() in entry.elsewhere]
    return meant or nearest(name, AGGREGATES)
