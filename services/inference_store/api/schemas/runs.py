"""Runs of retention."""

from datetime import datetime
from uuid import UUID

from inference_store.api.shown import Shown


class ShownRun(Shown):
    """One run of retention."""

    id: UUID
    model_id: str | None
    """Null: of every model, or of those of the project."""
    project_id: str | None
    """Of each of its models."""
    cause: str
    """`schedule` or `request`."""
    state: str
    """pending, running, done or failed."""
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    inputs_deleted: int
    responses_deleted: int
    inferences_deleted: int
    partitions_dropped: int
    error: str | None


class RequestedRun(ShownRun):
    """A run that was just asked for."""

    warnings: list[str]


class RunPage(Shown):
    """Runs, the newest first."""

    items: list[ShownRun]
    next: str | None
