"""True labels against predicted ones."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from operator import add
from typing import Any, Final

from inference_store.query.aggregates.statement import NUMBER, Column, Dimension

from .asking import Asked
from .evaluation import (
    Axis,
    AxisKind,
    Calibration,
    CalibrationBin,
    Cell,
    Confusion,
    Figure,
    LabelFigures,
    LabelsReport,
    Retrieved,
    Slices,
)
from .figures import Bin, Cells, Retrieval, average, count_labels, divide, wilson
from .filters import test_label, test_truth, write_all
from .truth_rows import column, select_labels

_BINS: Final = 10
_BOUNDS: Final = tuple(Decimal(number) / _BINS for number in range(_BINS + 1))
_OTHERS: Final[tuple[AxisKind, ...]] = ("other", "none")
_TRUTH, _PREDICTED = "truth_label", "top_label"


async def evaluate_labels(asked: Asked) -> tuple[LabelsReport, Slices | None]:
    """Return the report, and the accuracy of each slice."""
    rows = partial(select_labels, asked.sets)
    truth, predicted = (column(rows, name, "string", "whole") for name in ("truth", "predicted"))
    right = Column(column(rows, "right", "bool"), "true")
    score = column(rows, "top_score", "number", "double")
    scores = Column(
        column(rows, "top_score", "number"), "total"
    )  # as a double: exact sums of a million take a third of a second
    found = await asked.add_up(rows, (), Dimension(truth), Dimension(predicted))
    # a label that was erased meanwhile has no name
    cells = {key: sums[NUMBER] for key, sums in found.items() if key[0] is not None}
    binned = await asked.add_up(rows, (right, scores), Dimension(score, _BOUNDS))
    bins = {
        key[0]: Bin(sums[NUMBER], sums[right], float(sums.get(scores) or 0))
        for key, sums in binned.items()
        if key[0] is not None
    }
    of = asked.evaluation
    report = report_labels(cells, bins, most=of.most_labels, source=of.source)
    slices = await asked.add_up_slices(rows, right)
    return report, asked.show_slices(
        "accuracy", report.accuracy, slices, lambda sums: ratio(sums[right], sums[NUMBER])
    )


def ratio(part: int, whole: int) -> Figure:
    """Return a share with Wilson's interval."""
    return Figure(value=divide(part, whole), interval=wilson(part, whole), n=whole)


def report_labels(
    cells: Cells, bins: dict[int, Bin], *, most: int, source: str | None = None
) -> LabelsReport:
    """Return the figures of a confusion matrix, and of bins of scores by their number; bin 0 is
    below 0, and the last one begins with 1."""
    labels = count_labels(cells)
    found = sum(one.found for one in labels.values())
    said, total = sum(one.found + one.wrong for one in labels.values()), sum(cells.values())
    every = list(labels.values())
    return LabelsReport(
        accuracy=ratio(found, total),
        macro=Retrieved(
            precision=average(one.precision for one in every),
            recall=average(one.recall for one in every),
            f1=average(one.f1 for one in every),
        ),
        micro=Retrieved.model_validate(Retrieval(found, said - found, total - found)),
        labels=[LabelFigures(**describe(name, labels[name])) for name in list(labels)[:most]],
        other_labels=max(0, len(labels) - most),
        confusion=_cross(cells, list(labels)[:most], source),
        calibration=_calibrate(bins),
    )


def describe(label: str | None, counts: Retrieval) -> dict[str, Any]:
    """Return the fields of a label's figures."""
    found, wrong, missed = counts
    return {
        "label": label,
        "truth": found + missed,
        "predicted": found + wrong,
        "precision": ratio(found, found + wrong),
        "recall": ratio(found, found + missed),
        "f1": counts.f1,
    }


def _cross(cells: Cells, listed: Sequence[str], source: str | None) -> Confusion:
    """Lay the labels that are not listed together."""
    places = {label: place for place, label in enumerate(listed)}
    other, none = len(listed), len(listed) + 1
    crossed = Counter[tuple[int, int]]()
    for (truth, predicted), number in cells.items():
        column_place = none if predicted is None else places.get(predicted, other)
        crossed[places.get(truth, other), column_place] += number
    rows, columns = (_list_axes(crossed, listed, side) for side in (0, 1))
    row_of, column_of = ({place: n for n, place in enumerate(axes)} for axes in (rows, columns))
    own = _TRUTH if source is None else "label"  # of an item of the source's set
    known = [Axis(label=label, kind="label", inferences=0) for label in listed]
    return Confusion(
        truth=list(rows.values()),
        predicted=list(columns.values()),
        cells=[
            Cell(
                truth=row_of[row],
                predicted=column_of[of],
                inferences=number,
                filter=write_all(
                    test_truth(source, test_label(own, rows[row], known)),
                    test_label(_PREDICTED, columns[of], known),
                ),
            )
            for (row, of), number in sorted(crossed.items())
        ],
    )


def _list_axes(
    crossed: Counter[tuple[int, int]], listed: Sequence[str], side: int
) -> dict[int, Axis]:
    """Return the rows or columns by their place: those listed, and others that have a cell."""
    totals = Counter[int]()
    for cell, number in crossed.items():
        totals[cell[side]] += number
    axes = {
        place: Axis(label=label, kind="label", inferences=totals[place])
        for place, label in enumerate(listed)
    }
    for place, kind in enumerate(_OTHERS, len(listed)):
        if totals[place]:
            axes[place] = Axis(label=None, kind=kind, inferences=totals[place])
    return axes


def _calibrate(bins: dict[int, Bin]) -> Calibration | None:
    last = bins.get(_BINS + 1, Bin())
    # a score below 0, above 1 or that is no number is no share
    if not bins or 0 in bins or not last.total <= last.number:
        return None
    counted = [bins.get(number, Bin()) for number in range(1, _BINS + 1)]
    counted[-1] = Bin(*map(add, counted[-1], last))
    apart = sum(abs(one.total - one.right) for one in counted)
    return Calibration(
        error=divide(apart, sum(one.number for one in counted)),
        bins=[
            CalibrationBin(
                low=number / _BINS,
                high=(number + 1) / _BINS,
                mean_score=divide(one.total, one.number),
                right=ratio(one.right, one.number),
            )
            for number, one in enumerate(counted)
        ],
    )
