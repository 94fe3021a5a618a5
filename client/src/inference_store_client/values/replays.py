"""Replays: stored requests that are sent to a model again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

OVER: Final = ("done", "failed", "cancelled", "expired")
"""The states in which nothing more is sent or compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFields:
    """A replay as the store has it. `state` is `done` when all that was sent is compared."""

    id: UUID
    model_id: str
    filter: str | None
    to: Mapping[str, Any]
    """The `model` that answers, and its `version`."""
    state: str
    requested_by: str
    requested_at: datetime
    finished_at: datetime | None
    error: str | None
    """Why it failed, or waits."""
    inferences: int
    """That are to be sent, as far as they are listed."""
    counts: Mapping[str, Any]
    """How many are `listed`, `waiting`, `compared`, `missing`, `skipped` (by `reasons`), `gone`,
    `cancelled`."""
    summary: Mapping[str, Any]
    """Sums of what was compared, such as `disagreeing`, `flips` and `boxes_lost`."""

    @property
    def settled(self) -> int:
        """How many are done with."""
        return self.inferences - int(self.counts["listed"]) - int(self.counts["waiting"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """An inference that was sent again, and what its replay disagrees in."""

    uid: UUID
    to_uid: UUID | None
    """The inference that the call became."""
    state: str
    reason: str | None
    """Why it was not sent."""
    http_status: int | None
    grpc_code: int | None
    disagreement: float | None
    """0: they agree."""
    difference: Mapping[str, Any] | None
