"""Reconciliations."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from inference_store.api.shown import AnyText, Shown
from inference_store.operations.reconcile.reconciliations import Kind

from .fields import Body, Flag, ShortText
from .parameters import PageParameters


class AskedReconciliation(Body):
    """What to compare."""

    model_id: ShortText | None = None
    """Left out: every model."""


class AskedOrphans(Body):
    """Whether to erase a reconciliation's orphans."""

    dry_run: Flag = False
    """Whether it is only counted what would go."""


class ForetoldOrphans(Shown):
    """What would be erased; nothing was changed."""

    objects: int
    bytes: int
    held: int
    """Orphans that a legal hold may keep."""
    kept: int
    """Those of the reconciliation that are no orphans any more."""
    partial: bool
    """Time was over before all was looked at: there may be more."""


class ShownReconciliation(Shown):
    """One comparison of the bucket with the index."""

    id: UUID
    model_id: AnyText | None
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
    noted_at: datetime | None
    """When it was noted where the topic ends; null: it could not be."""
    orphans_before: datetime | None
    """Objects that are younger are not judged; null: none is."""
    because: str | None
    """What that time comes from."""
    counts: Mapping[str, int]
    """objects, bytes, named (by rows), missing, orphans, orphan_bytes, young, awaited, unjudged,
    and what a repair did."""
    books: Mapping[str, int] | None
    """stored + rebuilt - erased + difference = indexed, in inferences of every model."""
    error: str | None


class RequestedReconciliation(ShownReconciliation):
    """A comparison that was just asked for."""

    warnings: list[str]


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
    storage_key: AnyText
    model_id: str | None
    uid: UUID | None
    bytes: int | None
    modified_at: datetime | None
    state: str
    """`found`; of an orphan that was to be erased `erased`, `held` (a legal hold may keep it) or
    `kept` (it is no orphan any more)."""
    detail: AnyText | None


class FindingPage(Shown):
    """Findings, by kind and storage key."""

    items: list[ShownFinding]
    next: str | None
