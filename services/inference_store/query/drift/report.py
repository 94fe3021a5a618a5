"""Compares what two windows have of each feature, and says which changes are more than chance."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from inference_store.query.aggregates.bins import automatic, percentile
from inference_store.query.aggregates.operands import Operand
from inference_store.query.cql2.tree import Node, Operation
from inference_store.query.cql2.write import to_text

from . import statistics
from .answer import ComparedWindow, Drift, DriftBin, DriftRow, DriftSide
from .statistics import Pair

LEAST: Final = 100
"""With fewer on a side nothing is tested."""
MOST_BINS: Final = 20
_FINE_BINS: Final = 128
"""In which numbers are counted."""
_LEAST_EXPECTED: Final = 5
"""Of each bin, on each side: the tests of bins hold from there on."""
Counts: TypeAlias = Mapping[Any, int]
_SIDES: Final = ("reference", "current")


@dataclass(frozen=True, slots=True)
class Feature:
    """What is compared. `labels`: an inference may have several, or none.

    `condition`: of inferences that have it; of a share, what it is the share of.
    """

    name: str
    kind: Literal["number", "category", "labels", "share"]
    operand: Operand
    condition: Node | None = None
    missing_of: str | None = None
    """The feature without a value of which inferences are counted."""
    is_true: bool = True
    """Of a share: which values are counted."""
    is_asked: bool = False
    """Whether it was named, and is answered even if no inference has it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was read of a window. By feature: `counts`, how often each value occurs; of numbers the
    `means`, and the `bounds` of bins.

    `weight`: what each of several predictions of an inference counts for in a test.
    """

    inferences: int
    sampled: int
    node: Node | None
    uids: Sequence[UUID] = ()
    some: Sequence[UUID] = ()
    """The first of them that were drawn."""
    counts: dict[str, Counts] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, Sequence[float]] = field(default_factory=dict)
    weight: float = 1.0

    def find_counts(self, feature: Feature) -> Counts:
        """Return how often each value of a feature occurs."""
        counts = self.counts.get(feature.missing_of or feature.name, {})
        if feature.missing_of is not None:
            have = sum(counts.values())
            return {True: self.sampled - have, False: have}
        if feature.kind == "share":
            return {value is feature.is_true: count for value, count in counts.items()}
        convert = float if feature.kind == "number" else str
        return {convert(value): count for value, count in counts.items() if value is not None}

    def filter(self, condition: Node | None = None) -> str | None:
        """Return the CQL2-Text of those inferences that satisfy the condition too."""
        nodes = [node for node in (self.node, condition) if node is not None]
        if len(nodes) == 2:
            return to_text(Operation("and", tuple(nodes)))
        return to_text(nodes[0]) if nodes else None


def choose_bounds(values: Mapping[Decimal, int]) -> tuple[tuple[Decimal, ...], list[float]]:
    """Return the bounds of the bins in which numbers are counted, and those of them that are shown:
    of a round width, from the first to the last hundredth."""
    low, high = (percentile(values, Decimal(at)) for at in (1, 99))
    if low == high:
        low, high = min(values), max(values)
    number = MOST_BINS
    if all(value == value.to_integral_value() for value in values):
        number = int(min(Decimal(number), high - low + 1))
    shown = automatic(low, high, number)
    ordered = sorted(values)
    if len(ordered) > _FINE_BINS:
        ordered = sorted(value for value, count in values.items() for _ in range(count))
        ordered = ordered[:: max(1, len(ordered) // _FINE_BINS)]
    return tuple(sorted({*ordered, *shown})), [float(bound) for bound in shown]


def compare(
    features: Sequence[Feature],
    reference: Sampled,
    current: Sampled,
    *,
    level: float,
    keys_left_out: int = 0,
) -> Drift:
    """Compare each feature of two windows, and correct for the number of comparisons."""
    windows = reference, current
    pairs = [_Compared.of(feature, windows) for feature in features]
    rows = [_compare_one(one, windows) for one in pairs if one.is_something]
    chances = [row.chance for row in rows if row.chance is not None]
    adjusted = iter(statistics.adjust(chances))
    shown = []
    for row in rows:
        more: dict[str, Any] = {"drifted": False}
        if row.chance is not None:
            p_adjusted = next(adjusted)
            more = {"p_value": row.chance, "p_adjusted": p_adjusted, "drifted": p_adjusted < level}
            if row.degrees:
                own = level / len(chances), row.degrees, *row.effective
                more["psi_critical"] = statistics.psi_critical(*own)
        shown.append(DriftRow(**row.values, **more))
    both = [
        ComparedWindow(inferences=of.inferences, sampled=of.sampled, filter=of.filter())
        for of in windows
    ]
    return Drift(
        drifted=any(row.drifted for row in shown),
        level=level,
        comparisons=len(chances),
        **dict(zip(_SIDES, both, strict=True)),
        rows=sorted(shown, key=lambda row: (row.too_few, -row.effect, row.name)),
        keys_left_out=keys_left_out,
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """A feature, and how often each value occurs in both windows. `effective`: as how many
    independent values the `sizes` count."""

    feature: Feature
    counts: tuple[Counts, Counts]
    sizes: tuple[int, int]
    effective: tuple[float, float]
    bounds: Sequence[float] = ()

    @classmethod
    def of(cls, feature: Feature, windows: tuple[Sampled, Sampled]) -> "_Compared":
        one, other = (window.find_counts(feature) for window in windows)
        n, m = sum(one.values()), sum(other.values())
        if feature.kind == "labels":  # shares are of all inferences
            n, m = (window.sampled if n or m else 0 for window in windows)
        of_predictions = feature.operand.source == "prediction"
        weights = [window.weight if of_predictions else 1.0 for window in windows]
        bounds = windows[0].bounds.get(feature.name, ())
        return cls(feature, (one, other), (n, m), (n * weights[0], m * weights[1]), bounds)

    @property
    def is_something(self) -> bool:
        if self.feature.missing_of is not None:  # some have it, and some do not
            return all(sum(self.pair(have)) for have in (True, False))
        return self.feature.is_asked or any(self.sizes)

    @property
    def least(self) -> int:
        """How many of both windows a bin has at least, so that each side may expect enough."""
        total = sum(self.sizes)
        return ceil(_LEAST_EXPECTED * total / min(self.sizes) * total / sum(self.effective))

    def pair(self, value: Any) -> Pair:
        return self.counts[0].get(value, 0), self.counts[1].get(value, 0)

    def order(self) -> list[Any]:
        """Return the values, the most frequent first."""
        values = {*self.counts[0], *self.counts[1]}
        return sorted(values, key=lambda value: (-sum(self.pair(value)), value))


class _Row(NamedTuple):
    """A row before the correction. `degrees`: of freedom of PSI."""

    values: dict[str, Any]
    chance: float | None = None
    degrees: int = 0
    effective: tuple[float, float] = (1.0, 1.0)


def _compare_one(of: _Compared, windows: tuple[Sampled, Sampled]) -> _Row:
    feature, too_few = of.feature, min(of.effective) < LEAST
    row = _Row({"effect": 0.0, "bins": _name_bins(of, of.order()[:MOST_BINS])})
    if all(of.sizes):
        row = _COMPARERS[feature.kind](of)
    sides: list[dict[str, Any]] = [{}, {}]
    for side, window in enumerate(windows):
        if feature.kind == "number":
            sides[side]["mean"] = window.means.get(feature.name)
        elif feature.kind == "share" and of.sizes[side]:
            sides[side]["share"] = of.pair(True)[side] / of.sizes[side]
        sides[side]["filter"] = window.filter(feature.condition) or "TRUE"
    both = [DriftSide(n=n, **side) for n, side in zip(of.sizes, sides, strict=True)]
    row.values.update(
        name=feature.name,
        kind="category" if feature.kind == "labels" else feature.kind,
        too_few=too_few,
        **dict(zip(_SIDES, both, strict=True)),
    )
    return row._replace(chance=None if too_few else row.chance, effective=of.effective)


def _name_bins(of: _Compared, values: Sequence[Any]) -> list[DriftBin]:
    bins = [
        (str(value).lower() if value in {True, False} else str(value), value) for value in values
    ]
    return [_make_bin(of.pair(value), value=name) for name, value in bins]


def _make_bin(pair: Pair, **more: Any) -> DriftBin:
    return DriftBin(reference=pair[0], current=pair[1], **more)


def _add(pairs: Sequence[Pair]) -> Pair:
    return sum(p for p, _ in pairs), sum(q for _, q in pairs)


def _measure(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {"psi": statistics.psi(pairs), "jensen_shannon": statistics.jensen_shannon(pairs)}


def _compare_numbers(of: _Compared) -> _Row:
    spread, bins = statistics.compare_values(*of.counts), _bin_numbers(of)
    pairs = list[Pair]()
    for one in bins:  # a test needs some values in each bin: sparse neighbours are joined
        if pairs and sum(pairs[-1]) < of.least:
            pairs[-1] = _add([pairs[-1], (one.reference, one.current)])
        else:
            pairs.append((one.reference, one.current))
    if len(pairs) > 1 and sum(pairs[-1]) < of.least:
        pairs[-2:] = [_add(pairs[-2:])]
    values = {"effect": spread.ks, "ks": spread.ks, "wasserstein": spread.wasserstein, "bins": bins}
    is_constant = len({*of.counts[0], *of.counts[1]}) == 1
    chance = None if is_constant else statistics.ks_tail(spread.ks, *of.effective)
    return _Row(values | _measure(pairs), chance, len(pairs) - 1)


def _bin_numbers(of: _Compared) -> list[DriftBin]:
    """Return bins between the bounds; the outer ones are open if values lie beyond."""
    bounds, values = of.bounds, sorted({*of.counts[0], *of.counts[1]})
    last = len(bounds) - 2
    within: list[list[Pair]] = [[] for _ in bounds[1:]]
    for value in values:
        within[bisect_right(bounds, value, 1, last + 1) - 1].append(of.pair(value))
    ends = (
        bounds[0] if values[0] >= bounds[0] else None,
        bounds[-1] if values[-1] < bounds[-1] else None,
    )
    lows, highs = [ends[0], *bounds[1:-1]], [*bounds[1:-1], ends[1]]
    return [
        _make_bin(_add(pairs), low=low, high=high)
        for pairs, low, high in zip(within, lows, highs, strict=True)
    ]


def _compare_categories(of: _Compared) -> _Row:
    order, least = of.order(), of.least
    kept = [value for value in order if sum(of.pair(value)) >= least][: MOST_BINS - 1]
    others = order[len(kept) :]
    while kept and others and sum(_add([of.pair(value) for value in others])) < least:
        others.append(kept.pop())
    bins = _name_bins(of, kept)
    bins += [_make_bin(_add([of.pair(value) for value in others]))] if others else []
    pairs = [(one.reference, one.current) for one in bins]
    chance = statistics.chi_square_tail(pairs) if len(pairs) > 1 else None
    values = {"effect": statistics.total_variation(pairs), "bins": bins, **_measure(pairs)}
    return _Row(values, chance, len(pairs) - 1)


def _compare_labels(of: _Compared) -> _Row:
    """Compare each label by itself, for those of one inference depend on each other: the least
    likely change decides, corrected for their number."""
    (n, m), order, least = of.sizes, of.order(), of.least
    pairs = [of.pair(value) for value in order]
    chances = [
        statistics.chi_square_tail([(p, q), (n - p, m - q)])
        for p, q in pairs
        if least <= p + q < n + m
    ]
    values: dict[str, Any] = {
        "effect": max(abs(p / n - q / m) for p, q in pairs),
        "bins": _name_bins(of, order[:MOST_BINS]),
    }
    if all(_add(pairs)):
        values["jensen_shannon"] = statistics.jensen_shannon(pairs)
    return _Row(values, min(1.0, len(chances) * min(chances)) if chances else None)


def _compare_shares(of: _Compared) -> _Row:
    (n, m), pairs = of.sizes, [of.pair(True), of.pair(False)]
    p, q = pairs[0]
    values: dict[str, Any] = {
        "effect": abs(p / n - q / m),
        "interval": statistics.share_interval((p, n), (q, m)),
        "bins": _name_bins(of, [True, False]),
        **_measure(pairs),
    }
    chance = statistics.chi_square_tail(pairs) if all(map(sum, pairs)) else None
    return _Row(values, chance, 1)


_COMPARERS: Final[Mapping[str, Callable[[_Compared], _Row]]] = {
    "number": _compare_numbers,
    "category": _compare_categories,
    "labels": _compare_labels,
    "share": _compare_shares,
}
