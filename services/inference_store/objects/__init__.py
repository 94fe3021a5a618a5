"""The object store: reads, writes and deletes objects, and proves that deleted ones are gone."""

from .blobs import NOT_ALLOWED, Blobs
from .bucket import LockedObject
from .deletion import Deleted, DeleteFault, Listed
from .listing import Found
from .transfers import OVER_BUDGET, BlobStream, Fetched, OverBudget

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
