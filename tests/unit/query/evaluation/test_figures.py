"""Figures of labels and numbers agree with sklearn, and intervals with scipy, on random sets."""

from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn import metrics

from inference_store.query.cql2 import parse
from inference_store.query.evaluation.figures import Bin, around_mean, wilson
from inference_store.query.evaluation.labels import report_labels
from inference_store.query.evaluation.numbers import Sums, report_numbers

_TRIALS = 1000


def test_labels_agree_with_sklearn() -> None:
    for trial in range(_TRIALS):
        random = Random(trial)
        names = [f"label {n}" for n in range(random.randint(1, 6))]
        number = random.randint(0, 40)
        true = [random.choice(names) for _ in range(number)]
        said = [random.choice([*names, one, one, None]) for one in true]
        cells = Counter(zip(true, said, strict=True))
        report = report_labels(cells, {}, most=3)
        if not number:
            assert (report.accuracy.value, report.macro.f1, report.labels) == (None, None, [])
            continue
        # a prediction that is missing is wrong, and of no label
        own = [one or "" for one in said]
        used = sorted({*true, *own} - {""})
        how: Any = {"labels": used, "zero_division": 0}
        each = metrics.precision_recall_fscore_support(true, own, **how)
        macro = [float(np.mean(part)) for part in each]
        micro = metrics.precision_recall_fscore_support(true, own, average="micro", **how)
        assert report.accuracy.value == pytest.approx(metrics.accuracy_score(true, own), abs=1e-12)
        for mine, theirs in ((report.macro, macro), (report.micro, micro)):
            figures = [mine.precision or 0, mine.recall or 0, mine.f1 or 0]
            assert figures == pytest.approx(theirs[:3], abs=1e-12), trial
        for one in report.labels:
            of = used.index(one.label or "")
            figures = [one.precision.value or 0, one.recall.value or 0, one.f1 or 0]
            assert figures == pytest.approx([float(part[of]) for part in each[:3]], abs=1e-12)
            assert one.truth == each[3][of]
        assert len(report.labels) + report.other_labels == len(used)
        matrix = report.confusion
        for side in (matrix.truth, matrix.predicted):
            assert sum(axis.inferences for axis in side) == number
        crossed = metrics.confusion_matrix(true, own, labels=[*used, ""])
        for cell in matrix.cells:
            row, column = matrix.truth[cell.truth], matrix.predicted[cell.predicted]
            parse(cell.filter)  # counts over HTTP compare what it finds
            if row.kind == "label" and column.kind != "other":
                place = used.index(row.label or ""), [*used, ""].index(column.label or "")
                assert cell.inferences == crossed[place]


def test_calibration() -> None:
    for trial in range(_TRIALS):
        random = Random(trial)
        scores = [random.choice((0.0, 0.1, 1.0, random.random())) for _ in range(50)]
        right = [random.random() < score for score in scores]
        places = np.digitize(scores, np.arange(11) / 10)
        bins = dict[int, Bin]()
        for place, score, is_right in zip(places.tolist(), scores, right, strict=True):
            one = bins.get(place, Bin())
            bins[place] = Bin(one.number + 1, one.right + is_right, one.total + score)
        calibration = report_labels({("a", "a"): 1}, bins, most=1).calibration
        assert calibration is not None
        places = np.minimum(places, 10)
        error = sum(
            abs(np.mean(np.array(scores)[places == n]) - np.mean(np.array(right)[places == n]))
            * np.mean(places == n)
            for n in set(places.tolist())
        )
        assert calibration.error == pytest.approx(error, abs=1e-12)
    nothing: list[dict[int, Bin]] = [{0: Bin(1, 1, -0.5)}, {11: Bin(1, 1, 7.0)}, {}]
    for beyond in [*nothing, {11: Bin(1, 1, float("nan"))}]:
        assert report_labels({("a", "a"): 1}, beyond, most=1).calibration is None


def test_numbers_agree_with_sklearn() -> None:
    for trial in range(_TRIALS):
        random = Random(trial)
        far = random.choice((0, 10**9))
        pairs = [
            (Decimal(random.randint(0, 9)) + far, Decimal(random.randint(0, 99)) / 10 + far)
            for _ in range(random.randint(2, 30))
        ]
        errors = [said - true for true, said in pairs]
        sums = Sums(
            sum((true for true, _ in pairs), Decimal(0)),
            sum((true * true for true, _ in pairs), Decimal(0)),
            sum(errors, Decimal(0)),
            sum((error * error for error in errors), Decimal(0)),
            sum(map(abs, errors), Decimal(0)),
        )
        report = report_numbers(len(pairs), sums)
        true, said = ([float(pair[place] - far) for pair in pairs] for place in (0, 1))
        assert report.mae.value == pytest.approx(metrics.mean_absolute_error(true, said), abs=1e-9)
        assert report.rmse == pytest.approx(metrics.root_mean_squared_error(true, said), abs=1e-9)
        assert report.bias.value == pytest.approx(np.mean(said) - np.mean(true), abs=1e-9)
        if len(set(true)) > 1:
            assert report.r2 == pytest.approx(metrics.r2_score(true, said), abs=1e-9)
        else:
            assert report.r2 is None
        distances = np.abs(np.array(said) - np.array(true))
        half = 1.959963984540054 * distances.std(ddof=1) / len(pairs) ** 0.5
        assert report.mae.interval == pytest.approx(
            (distances.mean() - half, distances.mean() + half), abs=1e-6
        )
    nothing = report_numbers(0, Sums())
    assert (nothing.mae.value, nothing.rmse, nothing.r2) == (None, None, None)
    # what no JSON number can say is not known
    huge = Decimal(f"1e{800}")
    assert report_numbers(2, Sums(error_squares=huge)).rmse is None


def test_intervals() -> None:
    for whole in (1, 7, 30, 1000):
        for part in {0, 1, whole // 2, whole}:
            low, high = binomtest(part, whole).proportion_ci(method="wilson")
            assert wilson(part, whole) == pytest.approx((low, high), abs=1e-12)
    assert (wilson(0, 0), around_mean(1, 2.0, 4.0)) == (None, None)
