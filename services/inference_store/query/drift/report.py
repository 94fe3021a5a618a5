"""Compares what two windows have of each feature, and says which changes are more than chance."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil, isfinite
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from inference_store.query.aggregates.bins import automatic, percentile
from inference_store.query.aggregates.operands import Operand
from inference_store.query.cql2.tree import Node, Operation
from inference_store.query.cql2.write import to_text

from . import statistics
from .answer import ComparedWindow, Drift, DriftBin, DriftKind, DriftRow, DriftSide
from .statistics import Pair

LEAST: Final = 100
"""With fewer on a side nothing is tested."""
MOST_BINS: Final = 20
_LEAST_EXPECTED: Final = 5
"""Of each bin, on each side: the tests of bins hold from there on."""
Counts: TypeAlias = Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class Feature:
    """What is compared. `labels`: an inference may have several, or none.

    `condition`: of inferences that have it; of a share, what it is the share of.
    """

    name: str
    kind: Literal["number", "category", "labels", "share"]
    operand: Operand | None = None
    condition: Node | None = None
    missing_of: str | None = None
    """The feature without a value of which inferences are counted."""
    is_true: bool = True
    """Of a share: which values are counted."""
    is_asked: bool = False
    """Whether it was named, and is answered even if no inference has it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was read of a window. `counts`: how often each value occurs, by feature.

    `weight`: what each of several predictions of an inference counts for in a test.
    """

    inferences: int
    sampled: int
    node: Node | None
    counts: dict[str, Counts] = field(default_factory=dict)
    weight: float = 1.0

    def find_counts(self, feature: Feature) -> Counts:
        """Return how often each value of a feature occurs."""
        counts = self.counts.get(feature.missing_of or feature.name, {})
        if feature.missing_of is not None:
            have = sum(counts.values())
            return {True: self.sampled - have, False: have}
        if feature.kind == "number":
            floats = ((float(value), count) for value, count in counts.items() if value is not None)
            return {value: count for value, count in floats if isfinite(value)}
        if feature.kind == "share":
            return {value is feature.is_true: count for value, count in counts.items()}
        return {str(value): count for value, count in counts.items() if value is not None}

    def filter(self, condition: Node | None = None) -> str | None:
        """Return the CQL2-Text of those inferences that satisfy the condition too."""
        nodes = [node for node in (self.node, condition) if node is not None]
        if len(nodes) == 2:
            return to_text(Operation("and", tuple(nodes)))
        return to_text(nodes[0]) if nodes else None


class _Row(NamedTuple):
    """A row before the correction. `degrees`: of PSI; `sizes`: what its tests count as n."""

    values: dict[str, Any]
    chance: float | None
    degrees: int = 0
    sizes: tuple[float, float] = (1.0, 1.0)


def compare(
    features: Sequence[Feature],
    reference: Sampled,
    current: Sampled,
    *,
    level: float,
    keys_left_out: int = 0,
) -> Drift:
    """Compare each feature of two windows, and correct for the number of comparisons."""
    rows: list[_Row] = []
    for feature in features:
        both = reference.find_counts(feature), current.find_counts(feature)
        if _has_something(feature, both):
            rows.append(_compare_one(feature, (reference, current), both))
    tested = [row for row in rows if row.chance is not None]
    adjusted = iter(statistics.adjust([row.chance for row in tested if row.chance is not None]))
    shown = []
    for row in rows:
        more: dict[str, Any] = {"drifted": False}
        if row.chance is not None:
            p_adjusted = next(adjusted)
            more = {"p_value": row.chance, "p_adjusted": p_adjusted, "drifted": p_adjusted < level}
        if row.chance is not None and row.degrees:
            own = level / len(tested), row.degrees, *row.sizes
            more["psi_critical"] = statistics.psi_critical(*own)
        shown.append(DriftRow(**row.values, **more))
    windows = {
        name: ComparedWindow(inferences=of.inferences, sampled=of.sampled, filter=of.filter())
        for name, of in (("reference", reference), ("current", current))
    }
    return Drift(
        drifted=any(row.drifted for row in shown),
        level=level,
        comparisons=len(tested),
        **windows,
        rows=sorted(shown, key=lambda row: (row.too_few, -row.effect, row.name)),
        keys_left_out=keys_left_out,
    )


def _has_something(feature: Feature, both: tuple[Counts, Counts]) -> bool:
    if feature.missing_of is not None:  # some have it, and some do not
        return all(any(counts.get(have) for counts in both) for have in (True, False))
    return feature.is_asked or any(sum(counts.values()) for counts in both)


def _compare_one(
    feature: Feature, windows: tuple[Sampled, Sampled], both: tuple[Counts, Counts]
) -> _Row:
    sizes = [sum(counts.values()) for counts in both]
    if feature.kind == "labels":  # shares are of all inferences
        sizes = [window.sampled for window in windows]
    of_predictions = feature.operand is not None and feature.operand.source == "prediction"
    weights = [window.weight if of_predictions else 1.0 for window in windows]
    effective = sizes[0] * weights[0], sizes[1] * weights[1]
    row = _COMPARERS[feature.kind](both, (sizes[0], sizes[1]), effective)
    too_few = min(effective) < LEAST
    sides = row.values.pop("sides", ({}, {}))
    conditions = [window.filter(feature.condition) or "TRUE" for window in windows]
    row.values.update(
        name=feature.name,
        kind=_KINDS.get(feature.kind, feature.kind),
        too_few=too_few,
        **{
            name: DriftSide(n=sizes[side], filter=conditions[side], **sides[side])
            for side, name in enumerate(("reference", "current"))
        },
    )
    return row._replace(chance=None) if too_few else row


_Both: TypeAlias = tuple[Counts, Counts]
_Sizes: TypeAlias = tuple[int, int]
_KINDS: Final[Mapping[str, DriftKind]] = {"labels": "category"}


def _pair(both: _Both, value: Any) -> Pair:
    return both[0].get(value, 0), both[1].get(value, 0)


def _compare_numbers(both: _Both, sizes: _Sizes, effective: tuple[float, float]) -> _Row:
    bins = _bin_numbers(both)
    if not all(sizes):
        return _Row({"effect": 0.0, "bins": bins}, None)
    spread = statistics.compare_values(*both)
    pairs = _join_sparse([(one.reference, one.current) for one in bins], effective, sizes)
    values: dict[str, Any] = {
        "effect": spread.ks,
        "ks": spread.ks,
        "wasserstein": spread.wasserstein,
        "sides": tuple({"mean": mean} for mean in spread.means),
        "bins": bins,
    }
    is_constant = len({*both[0], *both[1]}) == 1
    chance = None if is_constant else statistics.ks_tail(spread.ks, *effective)
    return _Row(values | _measure(pairs), chance, len(pairs) - 1, effective)


def _measure(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {"psi": statistics.psi(pairs), "jensen_shannon": statistics.jensen_shannon(pairs)}


def _bin_numbers(both: _Both) -> list[DriftBin]:
    """Return bins of a round width from the first to the last hundredth; the outer ones are
    open."""
    pooled = {value: sum(_pair(both, value)) for value in {*both[0], *both[1]}}
    if not pooled:
        return []
    low, high = (percentile(pooled, Decimal(at)) for at in (1, 99))
    if low == high:
        low, high = min(pooled), max(pooled)
    number = MOST_BINS
    if all(value.is_integer() for value in pooled):
        number = int(min(number, high - low + 1))
    bounds = [float(one) for one in automatic(Decimal(repr(low)), Decimal(repr(high)), number)]
    counts = [[0, 0] for _ in range(len(bounds) - 1)]
    for value in pooled:
        place = bisect_right(bounds, value, 1, len(bounds) - 1) - 1
        for side in (0, 1):
            counts[place][side] += both[side].get(value, 0)
    last = len(counts) - 1
    return [
        DriftBin(
            low=bounds[place] if place or min(pooled) >= bounds[0] else None,
            high=bounds[place + 1] if place < last or max(pooled) < bounds[-1] else None,
            reference=pair[0],
            current=pair[1],
        )
        for place, pair in enumerate(counts)
    ]


def _join_sparse(
    pairs: Sequence[Pair], effective: tuple[float, float], sizes: _Sizes
) -> list[Pair]:
    """Join neighbours until a test of them holds."""
    joined: list[Pair] = []
    full = True
    for pair in pairs:
        if full:
            joined.append(pair)
        else:
            joined[-1] = joined[-1][0] + pair[0], joined[-1][1] + pair[1]
        full = sum(joined[-1]) >= _count_least(effective, sizes)
    if not full and len(joined) > 1:
        last = joined.pop()
        joined[-1] = joined[-1][0] + last[0], joined[-1][1] + last[1]
    return joined


def _count_least(effective: tuple[float, float], sizes: _Sizes) -> int:
    """Return how many of both windows a bin has at least, so that each may expect enough."""
    weight = sum(effective) / sum(sizes)
    return ceil(_LEAST_EXPECTED * sum(sizes) / min(sizes) / weight)


def _compare_categories(both: _Both, sizes: _Sizes, effective: tuple[float, float]) -> _Row:
    if not all(sizes):
        return _Row({"effect": 0.0, "bins": _name_bins(both, _order(both)[:MOST_BINS])}, None)
    least = _count_least(effective, sizes)
    order = _order(both)
    kept = [value for value in order if sum(_pair(both, value)) >= least][: MOST_BINS - 1]
    others = order[len(kept) :]
    while kept and others and sum(sum(_pair(both, value)) for value in others) < least:
        others.append(kept.pop())
    bins = _name_bins(both, kept)
    if others:
        rest = [sum(counts.get(value, 0) for value in others) for counts in both]
        bins.append(DriftBin(reference=rest[0], current=rest[1]))
    pairs = [(one.reference, one.current) for one in bins]
    chance = statistics.chi_square_tail(pairs) if len(pairs) > 1 else None
    values = {"effect": statistics.total_variation(pairs), "bins": bins, **_measure(pairs)}
    return _Row(values, chance, len(pairs) - 1, effective)


def _order(both: _Both) -> list[Any]:
    return sorted({*both[0], *both[1]}, key=lambda value: (-sum(_pair(both, value)), value))


def _name_bins(both: _Both, values: Sequence[Any]) -> list[DriftBin]:
    return [
        DriftBin(value=str(value), reference=pair[0], current=pair[1])
        for value in values
        for pair in (_pair(both, value),)
    ]


def _compare_labels(both: _Both, sizes: _Sizes, effective: tuple[float, float]) -> _Row:
    """Compare each label by itself, for those of one inference depend on each other: the least
    likely change decides, corrected for their number."""
    order = _order(both)
    bins, pairs = _name_bins(both, order[:MOST_BINS]), [_pair(both, value) for value in order]
    if not all(sizes):
        return _Row({"effect": 0.0, "bins": bins}, None)
    n, m = sizes
    least = _count_least(effective, sizes)
    chances = [
        statistics.chi_square_tail([(p, q), (n - p, m - q)])
        for p, q in pairs
        if least <= p + q < n + m
    ]
    values: dict[str, Any] = {
        "effect": max((abs(p / n - q / m) for p, q in pairs), default=0.0),
        "bins": bins,
    }
    if all(sum(counts.values()) for counts in both):
        values["jensen_shannon"] = statistics.jensen_shannon(pairs)
    return _Row(values, min(1.0, len(chances) * min(chances)) if chances else None)


def _compare_shares(both: _Both, sizes: _Sizes, effective: tuple[float, float]) -> _Row:
    pairs = [_pair(both, True), _pair(both, False)]
    names = ("true", "false")
    bins = [
        DriftBin(value=name, reference=pair[0], current=pair[1])
        for name, pair in zip(names, pairs, strict=True)
    ]
    if not all(sizes):
        return _Row({"effect": 0.0, "bins": bins}, None)
    low, high = statistics.share_interval((pairs[0][0], sizes[0]), (pairs[0][1], sizes[1]))
    shares = [hits / size for hits, size in zip(pairs[0], sizes, strict=True)]
    values: dict[str, Any] = {
        "effect": abs(shares[0] - shares[1]),
        "interval": (low, high),
        "sides": tuple({"share": share} for share in shares),
        "bins": bins,
        **_measure(pairs),
    }
    chance = statistics.chi_square_tail(pairs) if all(map(sum, pairs)) else None
    return _Row(values, chance, 1, effective)


_COMPARERS: Final[Mapping[str, Callable[[_Both, _Sizes, tuple[float, float]], _Row]]] = {
    "number": _compare_numbers,
    "category": _compare_categories,
    "labels": _compare_labels,
    "share": _compare_shares,
}
