"""Retention: policies, runs, erasures."""

from datetime import datetime
from uuid import UUID

from .fields import Shown


class ShownRule(Shown):
    """How long the input and the whole inference are kept."""

    name: str | None = None
    keep_input: str
    keep_inference: str


class ShownPolicy(Shown):
    """A model's retention policy."""

    model_id: str
    rules: list[ShownRule]
    revision: int
    updated_at: datetime


class ShownRun(Shown):
    """One run of retention."""

    id: UUID
    model_id: str | None
    """Null: of every model."""
    cause: str
    """`schedule` or `request`."""
    state: str
    """pending, running, done or failed."""
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    inputs_deleted: int
    inferences_deleted: int
    partitions_dropped: int
    error: str | None


class RunPage(Shown):
    """Runs, the newest first."""

    items: list[ShownRun]
    next: str | None


class ShownErasure(Shown):
    """One run of deletion."""

    id: UUID
    model_id: str | None
    cause: str
    """policy, request, expired_arrival or erased_again."""
    scope: str
    """`input` (the datum and what else of the request is kept) or `inference` (everything)."""
    state: str
    """pending, marking, deleting_objects, verifying, deleting_rows, deleted or failed."""
    run: UUID | None
    requested_at: datetime
    finished_at: datetime | None
    inferences: int
    objects: int
    error: str | None


class ErasurePage(Shown):
    """Erasures, the newest first."""

    items: list[ShownErasure]
    next: str | None
