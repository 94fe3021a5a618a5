"""Reconciliations."""

from inference_store.api.shown import AnyText, Shown
from inference_store.operations.reconcile.orphans import OrphanEstimate
from inference_store.operations.reconcile.stored_reports import Finding, Kind, Reconciliation

from .fields import Body, Flag, ShortText
from .links import PageParameters


class AskedReconciliation(Body):
    """What to compare."""

    model_id: ShortText | None = None
    """Left out: every model."""


class AskedOrphans(Body):
    """Whether to erase a reconciliation's orphans."""

    dry_run: Flag = False
    """Whether it is only counted what would go."""


class ForetoldOrphans(Shown, of=OrphanEstimate):
    """What would be erased; nothing was changed."""


class ShownReconciliation(Shown, of=Reconciliation, instead={"noted": ()}):
    """One comparison of the bucket with the index."""

    model_id: AnyText | None
    cause: str
    """`schedule`, `request` or `command`."""
    repair: str
    """`none` or `rebuild`."""
    state: str
    """pending, comparing, repairing, done or failed."""


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


class ShownFinding(Shown, of=Finding):
    """Something of which only the bucket knows, or only the index."""

    storage_key: AnyText
    detail: AnyText | None


class FindingPage(Shown):
    """Findings, by kind and storage key."""

    items: list[ShownFinding]
    next: str | None
