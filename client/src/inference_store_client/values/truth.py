"""Ground truth: what sources say of an inference."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthItem:
    """One thing that is there. `box`: xmin, ymin, xmax, ymax in pixels, y down."""

    label: str | None
    box: tuple[float, ...] | None
    text: str | None
    value: float | None


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
    outcome: Literal["ambiguous", "erased", "refused"]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthLoad:
    """What became of ground truth in bulk: how many sets, and the first rows that changed
    nothing."""

    matched: int
    awaiting: int
    ambiguous: int
    erased: int
    refused: int
    changed: int
    unchanged: int
    problems: tuple[RefusedRow, ...]
