"""Erasures."""

from datetime import datetime
from uuid import UUID

from .fields import Shown


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
