"""The answer of a comparison of two windows."""

from typing import Literal, TypeAlias

from pydantic import Field

from inference_store.inference.field_docs import Stored

DriftKind: TypeAlias = Literal["number", "category", "share"]


class DriftBin(Stored):
    """How many each window has of some values: of numbers from `low` up to `high`, of which null is
    open; of categories `value`, null for all others together."""

    value: str | None = None
    low: float | None = None
    high: float | None = None
    reference: int
    current: int


class DriftSide(Stored):
    """What one window has."""

    n: int
    """Values; of a share, inferences."""
    mean: float | None = None
    """Of numbers."""
    share: float | None = None
    """Of a share: how much of them."""
    filter: str
    """CQL2-Text of these inferences, with the window's time, for a query."""


class DriftRow(Stored):
    """One comparison. What does not apply to its kind is null."""

    name: str = Field(examples=["brightness"])
    """A property, a metadata key, `label` for all labels, or `prediction.` with a column; of a
    share the condition in CQL2: `NOT ok`, `brightness IS NULL`."""
    kind: DriftKind
    """`share`: of inferences for which something is true."""
    effect: float
    """The size of the change, from 0 to 1: the share of inferences that lies elsewhere. Of numbers
    the Kolmogorov-Smirnov distance, of categories the total variation, of a share, and of labels,
    of which an inference may have several, the largest difference of shares."""
    drifted: bool
    """Whether chance is less likely than the level to make this change: `p_adjusted`."""
    too_few: bool
    """Whether either window has fewer than 100: then nothing is tested."""
    p_value: float | None = None
    """How likely chance makes so large a change: by the Kolmogorov-Smirnov test of numbers, by a
    chi-square test of all else. Null if nothing was tested, as all values are the same."""
    p_adjusted: float | None = None
    """The same, corrected for the number of comparisons by Holm's method."""
    psi: float | None = None
    """The population stability index."""
    psi_critical: float | None = None
    """What PSI exceeds by chance, at the level, corrected for the number of comparisons, with as
    many values as these."""
    jensen_shannon: float | None = None
    """The Jensen-Shannon distance, from 0 to 1."""
    ks: float | None = None
    """The Kolmogorov-Smirnov distance of numbers."""
    wasserstein: float | None = None
    """The mean way from one distribution to the other, in the unit of the numbers."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of a difference of shares, current less reference."""
    reference: DriftSide
    current: DriftSide
    bins: list[DriftBin]
    """The histograms of both windows."""


class ComparedWindow(Stored):
    """A window as a whole."""

    inferences: int
    sampled: int
    """How many of them were compared: all, or a random sample."""
    filter: str | None
    """CQL2-Text; null: everything."""


class Drift(Stored):
    """How two windows differ. The largest changes come first, and what has too few last."""

    drifted: bool
    """Whether any row did. By chance that happens as often as the `level` says, over all rows."""
    level: float
    comparisons: int
    """How many rows were tested, and are corrected for."""
    reference: ComparedWindow
    current: ComparedWindow
    rows: list[DriftRow]
    keys_left_out: int
    """Metadata keys that were not compared: the least used, times, lists, and texts that are nearly
    all different."""
