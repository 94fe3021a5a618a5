"""Metrics of the capture process that are shown from the start."""

from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.platform.metrics import (
    CAPTURE_TROUBLE,
    CAPTURES,
    CAPTURES_DROPPED,
    INCOMPLETE_CAPTURES,
    from_zero,
)

from .backoff import SERVERS


def begin_metrics() -> None:
    """Show metrics with known labels from zero."""
    from_zero(CAPTURES, ("sampled_out", "dropped", "published"))
    from_zero(CAPTURES_DROPPED, DROP_REASONS)
    from_zero(INCOMPLETE_CAPTURES, CAPTURE_PROBLEMS)
    from_zero(CAPTURE_TROUBLE, SERVERS)
