"""Drift: its statistics are those of scipy, chance alone raises no alarm more often than the level
says, and planted changes are found."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from scipy.spatial import distance

from inference_store.query.aggregates.operands import LABEL, Operand
from inference_store.query.drift import Drift, compare, statistics
from inference_store.query.drift.report import Feature, Sampled, choose_bounds

_COUNTS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=2, max_size=12)
_VALUES = st.lists(st.sampled_from([-3.5, -1, 0, 0.25, 1, 2, 7, 900]), min_size=4, max_size=40)


@settings(max_examples=200)
@given(st.floats(0, 400), st.integers(1, 60))
def test_tails_are_those_of_scipy(value: float, degrees: int) -> None:
    ours = statistics.chi2_tail(value, degrees)
    assert ours == pytest.approx(special.chdtrc(degrees, value), rel=1e-9, abs=1e-13)
    own = statistics.kolmogorov_tail(value / 100)
    assert own == pytest.approx(special.kolmogorov(value / 100), rel=1e-9, abs=1e-13)
    level = max(value / 401, 1e-6)
    critical = statistics.chi2_critical(level, degrees)
    assert critical == pytest.approx(stats.chi2.isf(level, degrees), rel=1e-9)


@settings(max_examples=60)
@given(_COUNTS, _VALUES, _VALUES)
def test_distances_are_those_of_scipy(
    bins: Sequence[tuple[int, int]], one: Sequence[float], other: Sequence[float]
) -> None:
    table = np.array(bins).T
    judged = stats.chi2_contingency(table)
    assert statistics.chi_square_tail(bins) == pytest.approx(judged.pvalue, rel=1e-7, abs=1e-13)
    apart = distance.jensenshannon(*table, base=2)
    assert statistics.jensen_shannon(bins) == pytest.approx(apart, abs=1e-7)
    spread = statistics.compare_values(Counter(one), Counter(other))
    assert spread.ks == pytest.approx(
        stats.ks_2samp(one, other, method="asymp").statistic, abs=1e-12
    )
    assert spread.wasserstein == pytest.approx(stats.wasserstein_distance(one, other), abs=1e-9)


def test_corrections_and_intervals_are_those_of_the_literature() -> None:
    rng = np.random.default_rng(7)
    for n, m in ((100, 100), (150, 4000)):
        one, other = rng.normal(size=n), rng.normal(0.3, size=m)
        exact = stats.ks_2samp(one, other, method="exact")
        ours = statistics.ks_tail(exact.statistic, n, m)
        assert exact.pvalue <= ours <= 1.25 * exact.pvalue
    assert statistics.adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # Newcombe (1998), table II: 56/70 less 48/80, by method 10
    low, high = statistics.share_interval((48, 80), (56, 70))
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    # 25 rows against 20: what "severe" is called elsewhere is what chance does
    assert statistics.psi_critical(0.05, 9, 25, 20) > 0.69


_Inference = dict[str, Any]
_OWN, _BOX = Operand("inference", "", "number"), Operand("prediction", "", "number", many=True)
_FEATURES = (
    Feature("brightness", "number", _OWN),
    Feature("model_ms", "number", _OWN),
    Feature("prediction_count", "number", _OWN),
    Feature("prediction.area", "number", _BOX),
    Feature("camera", "category", _OWN),
    Feature("request", "category", _OWN),
    Feature("top_label", "category", _OWN),
    Feature("label", "labels", LABEL),
    Feature("ok", "share", _OWN, is_true=False),
    Feature("at_night", "share", _OWN),
    Feature("brightness IS NULL", "share", _OWN, missing_of="brightness"),
)


def _infer(rng: random.Random, number: int) -> _Inference:
    """Boxes of one picture are alike, most values come often, and some are rare."""
    brightness, size = rng.gauss(120, 20), rng.lognormvariate(8, 0.6)
    boxes = rng.choice((0, 1, 1, 2, 5, 12))
    labels = [rng.choices("abcdefghij", range(10, 0, -1))[0] for _ in range(boxes)]
    return {
        "brightness": [] if rng.random() < 0.03 else [round(brightness)],
        "model_ms": [rng.lognormvariate(3, 0.5)],
        "prediction_count": [boxes],
        "prediction.area": [size * rng.uniform(0.9, 1.1) for _ in range(boxes)],
        "camera": [rng.choices(("hall", "yard", "gate", "roof"), (50, 30, 15, 5))[0]],
        "request": [f"request-{number}"],
        "top_label": labels[:1],
        "label": sorted(set(labels)),
        "ok": [rng.random() > 0.02],
        "at_night": [brightness < 100],
    }


def _sample(inferences: Sequence[_Inference]) -> Sampled:
    counts = {
        name: Counter(value for one in inferences for value in one[name]) for name in inferences[0]
    }
    boxes = [one["prediction_count"][0] for one in inferences]
    number = len(inferences)
    weight = sum(boxes) / sum(n * n for n in boxes)
    return Sampled(number, number, None, counts=dict(counts), weight=weight)


def _compare(reference: Sequence[_Inference], current: Sequence[_Inference]) -> Drift:
    """Compare them as they are read: numbers are counted in bins, as some of both tell."""
    windows = _sample(reference), _sample(current)
    for name in (feature.name for feature in _FEATURES if feature.kind == "number"):
        some = _sample([*reference[:200], *current[:200]]).counts[name]
        bounds, shown = choose_bounds({Decimal(repr(v)): count for v, count in some.items()})
        for window in windows:
            counts, window.bounds[name] = window.counts[name], shown
            window.means[name] = sum(v * n for v, n in counts.items()) / sum(counts.values())
            bins = Counter[Any]()
            for value, count in counts.items():
                bins[max(0, bisect_right(bounds, value) - 1)] += count
            window.counts[name] = {bounds[place]: count for place, count in bins.items()}
    return compare(_FEATURES, *windows, level=0.05)


def test_chance_alone_raises_at_most_five_alarms_of_a_hundred() -> None:
    rng = random.Random(37)
    inferences = [_infer(rng, number) for number in range(900)]
    alarms = tested = 0
    for _ in range(200):
        rng.shuffle(inferences)
        drift = _compare(inferences[:600], inferences[600:])
        alarms += drift.drifted
        tested += drift.comparisons
    assert tested >= 200 * 9
    assert alarms <= 10


def _darken(rng: random.Random, one: _Inference) -> None:  # noqa: ARG001
    one["brightness"] = [value - 25 for value in one["brightness"]]


def _darken_one_camera(rng: random.Random, one: _Inference) -> None:
    if one["camera"] == ["yard"]:
        _darken(rng, one)


def _mix(rng: random.Random, one: _Inference) -> None:
    if rng.random() < 0.25:
        one["top_label"], one["label"] = ["j"], sorted({*one["label"], "j"})


def _lose(rng: random.Random, one: _Inference) -> None:
    if rng.random() < 0.08:
        one["brightness"] = []


@pytest.mark.parametrize(
    ("change", "found", "first"),
    [
        (_darken, {"brightness"}, "brightness"),
        (_darken_one_camera, {"brightness"}, "brightness"),
        (_mix, {"top_label", "label"}, "top_label"),
        (_lose, {"brightness IS NULL"}, None),
    ],
)
def test_planted_changes_are_found(
    change: Callable[[random.Random, _Inference], None], found: set[str], first: str | None
) -> None:
    rng = random.Random(4)
    reference, current = ([_infer(rng, n) for n in range(1000)] for _ in range(2))
    for one in current:
        change(rng, one)
    drift = _compare(reference, current)
    assert drift.drifted
    assert {row.name for row in drift.rows if row.drifted} == found
    assert first in (None, drift.rows[0].name)
    for row in drift.rows:
        assert row.reference.n > 0
        over = row.psi is not None and row.psi_critical is not None and row.psi > row.psi_critical
        assert row.drifted or not over


def test_too_few_are_named_and_raise_no_alarm() -> None:
    rng = random.Random(5)
    reference, current = ([_infer(rng, n) for n in range(number)] for number in (25, 200))
    for one in current:
        one["brightness"] = [900]
    drift = _compare(reference, current)
    assert not drift.drifted
    assert drift.comparisons == 0
    by_name = {row.name: row for row in drift.rows}
    assert by_name["brightness"].too_few
    assert (by_name["brightness"].effect, by_name["brightness"].current.n) == (1.0, 200)
