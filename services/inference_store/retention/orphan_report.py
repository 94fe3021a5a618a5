"""The report of the reconciliation whose orphans an erasure deletes."""

from uuid import UUID

from inference_store.erasure.progress.erasure import Erasure


def parse_report(erasure: Erasure) -> UUID:
    """Return the id of the report."""
    return UUID((erasure.asked or {})["report"])
