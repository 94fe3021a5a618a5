"""The object store: reading, writing, deleting and proving that what was deleted is gone."""

from .blobs import NOT_ALLOWED, Blobs
from .deletion import Deleted, DeleteFault, Listed
from .locking import LockedObject
from .pages import Found
from .reading import OVER_BUDGET, Fetched, OverBudget
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
