"""What is asked of an evaluation, and what it answers."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, Strict

from inference_store.inference.field_docs import FINITE, WHOLE, Body, ShortText, Stored
from inference_store.query.aggregates.aggregation import Grouped

from .figures import Interval

Task: TypeAlias = Literal["labels", "boxes", "numbers"]
AxisKind: TypeAlias = Literal["label", "other", "none"]
MainFigure: TypeAlias = Literal["accuracy", "f1", "mae"]
MOST_SLICES: Final = 50
Share: TypeAlias = Annotated[float, Field(gt=0, le=1), FINITE]


class Evaluation(Body):
    """How right the model was, by the ground truth of the inferences that match."""

    task: Task | None = None
    """`labels`: the true label against `top_label`; `boxes`: true boxes against predicted ones;
    `numbers`: true values against predicted ones. Left out: what the model's task type says, and
    for `tabular` and unknown ones what most of the truth is."""
    source: Annotated[ShortText, Field(min_length=1, max_length=64)] | None = None
    """Whose truth counts. Left out: of each inference the set that was written last."""
    group_by: Grouped | None = None
    """By what to slice: a metadata key or a property, or what groups of an aggregate are by."""
    iou: Share = 0.5
    """Of boxes: from which overlap (intersection over union) on a box is found."""
    score: Annotated[float, FINITE] | None = None
    """Of boxes: predictions with a lower score do not count, but in the average precision."""
    label: ShortText | None = None
    """Of boxes: only those with this label."""
    most_labels: Annotated[int, Strict(), Field(ge=1, le=100), WHOLE] = 20
    """How many labels are listed, the most frequent first; the others are together one cell of the
    confusion matrix. Figures of all labels are of all."""


class Figure(Stored):
    """A figure, and where it lies 95 times of 100. `n`: how many it is of."""

    value: float | None
    """Null of nothing."""
    interval: Interval | None
    n: int


class Retrieved(Stored):
    """Precision, recall and F1; null of nothing."""

    precision: float | None
    recall: float | None
    f1: float | None


class LabelFigures(Stored):
    """The figures of one label."""

    label: str | None
    """Null: boxes without a label."""
    truth: int
    """How often it is true."""
    predicted: int
    precision: Figure
    recall: Figure
    f1: float | None


class Axis(Stored):
    """A row or a column of the confusion matrix."""

    label: str | None
    """Null for `other` labels together, and for `none`: the inferences without a prediction."""
    kind: AxisKind
    inferences: int


class Cell(Stored):
    """A cell of the confusion matrix that is not empty."""

    truth: int = Field(examples=[0])
    """The place of its row in `truth`."""
    predicted: int = Field(examples=[1])
    """The place of its column in `predicted`."""
    inferences: int
    filter: str = Field(examples=["truth_label = 'person' AND top_label = 'dog'"])
    """Finds these inferences, beside the conditions of the request."""


class Confusion(Stored):
    """How often each label was predicted where each one is true."""

    truth: list[Axis]
    predicted: list[Axis]
    cells: list[Cell]


class CalibrationBin(Stored):
    """Inferences whose `top_score` is at least `low` and below `high`; the last bin has both."""

    low: float
    high: float
    mean_score: float | None
    right: Figure
    """The share that is right."""


class Calibration(Stored):
    """Whether scores are the shares that are right."""

    error: float | None
    """The expected calibration error: how far both are apart, on average over the inferences."""
    bins: list[CalibrationBin]


class LabelsReport(Stored):
    """How right labels were."""

    accuracy: Figure
    macro: Retrieved
    """The mean over labels; one that was never predicted, or never true, counts as 0."""
    micro: Retrieved
    """Of all labels together."""
    labels: list[LabelFigures]
    other_labels: int
    """How many are not listed."""
    confusion: Confusion
    calibration: Calibration | None
    """Null if no score is known, or one is not between 0 and 1."""


class AveragePrecision(Stored):
    """The average precision as COCO defines it; null where nothing is true."""

    ap: float | None
    """The mean of those at an overlap of 0.50, 0.55, … 0.95."""
    ap_50: float | None
    ap_75: float | None


class BoxFigures(LabelFigures):
    """The figures of the boxes of one label."""

    true_positives: int
    false_positives: int
    false_negatives: int
    average_precision: AveragePrecision


class BoxesReport(Stored):
    """How right boxes were."""

    images: int
    """How many were matched."""
    sampled: bool
    """Whether they are a sample of those with truth, since these have too many boxes."""
    incomplete: int
    """Of how many the truth does not name everything: there, a prediction without a match is not
    wrong."""
    left_out: int
    """Boxes that no area is known of, and predictions beyond the first 100 of a label and image."""
    true_positives: int
    false_positives: int
    false_negatives: int
    precision: Figure
    recall: Figure
    f1: Figure
    """Its interval is from 200 samples of the images."""
    average_precision: AveragePrecision
    """The mean over labels."""
    labels: list[BoxFigures]
    other_labels: int


class NumbersReport(Stored):
    """How right numbers were; the error is what was predicted minus what is true."""

    mae: Figure
    """The mean distance."""
    rmse: float | None
    """The root of the mean square of errors."""
    bias: Figure
    """The mean error."""
    r2: float | None
    """The share of the variance that is explained; null if there is no variance."""


class Slice(Stored):
    """Inferences with one value of `group_by`."""

    value: Any = Field(examples=["hallway"])
    """Null: they have none."""
    filter: str | None = Field(examples=["camera = 'hallway'"])
    """Finds its inferences, beside the conditions of the request; null where no filter can."""
    labelled: int
    """How many there are with truth."""
    figure: Figure
    worse: float | None
    """How much worse the figure is than that of the whole."""
    too_few: bool


class Slices(Stored):
    """The figure of each slice, the worst first; those of too few inferences come last."""

    by: str
    figure: MainFigure
    items: list[Slice]
    """At most 50, those with the most inferences."""
    others: int
    """How many slices are not listed."""


class SourceCount(Stored):
    """Inferences with truth from a source."""

    source: str
    inferences: int


class Evaluated(Stored):
    """How right the model was."""

    task: Task
    inferences: int
    """How many match."""
    labelled: int
    """How many of them have truth of the source."""
    too_few: bool
    """Whether these are fewer than 30: no figure says much."""
    sources: list[SourceCount]
    labels: LabelsReport | None = None
    boxes: BoxesReport | None = None
    numbers: NumbersReport | None = None
    """One of the three, by the task."""
    slices: Slices | None = None
    warnings: tuple[str, ...] = ()
