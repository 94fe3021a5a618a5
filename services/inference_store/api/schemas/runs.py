"""Runs of retention."""

from inference_store.api.shown import Shown
from inference_store.erasure.runs import RetentionRun


class ShownRun(Shown, of=RetentionRun, instead={"model": ("model_id",)}):
    """One run of retention."""

    model_id: str | None
    """Null: of every model, or of those of the project."""
    cause: str
    """`schedule` or `request`."""
    state: str
    """pending, running, done or failed."""


class RequestedRun(ShownRun):
    """A run that was just asked for."""

    warnings: list[str]


class RunPage(Shown):
    """Runs, the newest first."""

    items: list[ShownRun]
    next: str | None
