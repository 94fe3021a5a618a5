"""How the inferences of two windows differ: `POST /v1/models/{id}/inferences/drift`."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBin:
    """How many each window has of some values: of numbers from `low` up to `high`, of which None is
    open; or of a category, `value`, None for all others."""

    value: str | None = None
    low: float | None = None
    high: float | None = None
    reference: int
    current: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSide:
    """What one window has; `filter`: of its inferences, in CQL2."""

    n: int
    mean: float | None = None
    share: float | None = None
    filter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """One comparison. What does not apply to its kind is None."""

    name: str
    kind: Literal["number", "category", "share"]
    effect: float
    """From 0 to 1: the share of inferences that lies elsewhere."""
    drifted: bool
    """Whether that is more than chance does."""
    too_few: bool
    """Whether a window has fewer than 100: then nothing is tested."""
    p_value: float | None = None
    p_adjusted: float | None = None
    """Corrected for the number of comparisons, by Holm's method."""
    psi: float | None = None
    psi_critical: float | None = None
    """What PSI exceeds by chance, with as many values as these."""
    jensen_shannon: float | None = None
    ks: float | None = None
    wasserstein: float | None = None
    interval: tuple[float, float] | None = None
    """Of a difference of shares, current less reference: 95 %."""
    reference: DriftSide
    current: DriftSide
    bins: tuple[DriftBin, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedWindow:
    """A window: how many inferences it has, and how many of them were compared."""

    inferences: int
    sampled: int
    filter: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How two windows differ: the largest changes first."""

    drifted: bool
    level: float
    comparisons: int
    reference: ComparedWindow
    current: ComparedWindow
    rows: tuple[DriftRow, ...]
    keys_left_out: int
    """Metadata keys that were not compared."""
    warnings: tuple[str, ...]
