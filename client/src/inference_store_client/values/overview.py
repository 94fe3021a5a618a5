"""What a model did in a window of time: `GET /v1/models/{id}/overview`."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of `model_ms`."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewBar:
    """A span of time, and what was received in it."""

    received_from: datetime
    received_to: datetime
    inferences: int
    errors: int
    predicted: int
    """Of which have a prediction."""
    sampled: int
    """How many the latency and the labels are made of."""
    latency: Latency | None
    labels: tuple[int, ...]
    """Inferences of each of the overview's `labels`, by their top label."""
    other_labels: int
    scores: tuple[int, ...]
    """Inferences in each bin of the overview's `scores`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCount:
    """Inferences with a top label."""

    label: str
    inferences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBin:
    """Inferences whose top score is at least `low` and below `high`; the last bin has both."""

    low: float
    high: float
    inferences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureProblem:
    """A property that says what is wrong, its value, and how many inferences have it."""

    property: str
    value: str
    inferences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What became of the calls of all models; `seen` is the sum of the others."""

    since: datetime
    """When the first producer of them started."""
    seen: int
    sampled_out: int
    captured: int
    waiting: int
    missed: dict[str, int]
    """By reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a model did in a window of time, and what needs attention."""

    model_id: str
    received_from: datetime | None
    """The window; None: nothing was received in it, and not both ends were given."""
    received_to: datetime | None
    inferences: int
    errors: int
    predicted: int
    sampled: int
    """How many of them latency, labels, scores and problems are made of. Other counts are exact."""
    estimated: bool
    """Whether these are not all."""
    latency: Latency | None
    bars: tuple[OverviewBar, ...] = field(repr=False)
    labels: tuple[LabelCount, ...]
    other_labels: int
    scores: tuple[ScoreBin, ...] = field(repr=False)
    problems: tuple[CaptureProblem, ...]
    newest: tuple[UUID, ...] = field(repr=False)
    """The newest that have a prediction, by uid."""
    dead_letters: int | None
    """None: you lack the right `admin`."""
    parked_events: int | None
    captured: Captured | None
    """None: you lack the right `read` over everything, or no producer reports."""
