"""Aggregates as they are answered."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from inference_store.api.schemas.explain import Explanation
from inference_store.api.schemas.resolved import ResolvedTime
from inference_store.api.shown import Shown


class ShownGroup(Shown):
    """A group. `key`: what it was grouped by, null where there is no value."""

    key: dict[str, Any] = Field(examples=[{"time": "2026-11-01T00:00:00.000000Z"}])
    measures: dict[str, Any] = Field(examples=[{"count": 17, "mean(model_ms)": 12.5}])


class ShownOthers(Shown):
    """What `limit` left out."""

    groups: int
    inferences: int
    """An inference in several groups is counted in each."""


class ShownAggregate(Shown):
    """Measures by groups."""

    groups: list[ShownGroup]
    others: ShownOthers
    approximate: bool
    """Whether some percentiles are not exact; each says it itself. All else always is exact."""
    warnings: Sequence[str]
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""
    explain: Explanation | None = None
    """Where it was asked for."""
