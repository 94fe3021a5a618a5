"""Ground truth: what sources say of an inference."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthItem:
    """One thing that is there. `box`: xmin, ymin, xmax, ymax in pixels, y down."""

    label: str | None = None
    box: tuple[float, ...] | None = None
    text: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundTruth:
    """What one source says of an inference. `complete`: `items` name all there is."""

    source: str
    complete: bool
    revision: int
    by: str
    at: datetime
    items: tuple[TruthItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthSets:
    """The ground truth of an inference, by source."""

    sets: tuple[GroundTruth, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that changed nothing: ambiguous, erased or refused, and why."""

    line: int
    outcome: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthLoad:
    """What became of ground truth in bulk: how many sets, and the first rows that changed
    nothing."""

    matched: int = 0
    awaiting: int = 0
    ambiguous: int = 0
    erased: int = 0
    refused: int = 0
    changed: int = 0
    unchanged: int = 0
    problems: tuple[RefusedRow, ...] = ()
