"""The object store: reads, writes and deletes objects, and proves that deleted ones are gone."""

from .blobs import NOT_ALLOWED, Blobs
from .deletion import Deleted, DeleteFault, Listed
from .locking import LockedObject
from .many_reads import OVER_BUDGET, Fetched, OverBudget
from .pages import Found
from .streaming import BlobStream

__all__ = [
    "NOT_ALLOWED",
    "OVER_BUDGET",
    "BlobStream",
    "Blobs",
    "DeleteFault",
    "Deleted",
    "Fetched",
    "Found",
    "Listed",
    "LockedObject",
    "OverBudget",
]
