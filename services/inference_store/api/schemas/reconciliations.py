"""Reconciliations."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from .fields import Body, ShortText, Shown
from .links import PageParameters

Kind = Literal["orphan", "missing", "unreadable"]


class AskedReconciliation(Body):
    """What to compare."""

    model_id: ShortText | None = None
    """Left out: every model."""


class ShownReconciliation(Shown):
    """One comparison of the bucket with the index."""

    id: UUID
    model_id: str | None
    """Null: every model."""
    cause: str
    """`schedule`, `request` or `command`."""
    repair: str
    """`none` or `rebuild`."""
    state: str
    """pending, comparing, repairing, done or failed."""
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    places: list[str]
    """Where it looks."""
    place: int
    """How many of the places are done; of the next one it is behind `after`."""
    after: str
    orphans_before: datetime | None
    """Objects that are younger are not judged; null: none is."""
    because: str | None
    """What that time comes from."""
    counts: dict[str, int]
    """objects, bytes, named (by rows), missing, orphans, orphan_bytes, young, awaited, unjudged,
    and what a repair did."""
    books: dict[str, int] | None
    """stored + rebuilt - erased + difference = indexed, in inferences of every model."""
    error: str | None


class ReconciliationPage(Shown):
    """Reconciliations, the newest first."""

    items: list[ShownReconciliation]
    next: str | None


class FindingParameters(PageParameters):
    """Which page of which findings."""

    kind: Kind | None = None


class ShownFinding(Shown):
    """Something of which only the bucket knows, or only the index."""

    kind: Kind
    """`orphan`: an object without a row; `missing`: a row without its object; `unreadable`: an
    object that a rebuild could not read."""
    storage_key: str
    model_id: str | None
    uid: UUID | None
    bytes: int | None
    modified_at: datetime | None
    state: str
    """`found`."""
    detail: str | None


class FindingPage(Shown):
    """Findings, by kind and storage key."""

    items: list[ShownFinding]
    next: str | None
