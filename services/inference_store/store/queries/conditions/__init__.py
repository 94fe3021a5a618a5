"""Conditions in SQL, and the typed filter made into them."""

from .compiled import condition_of
from .condition import EVERYTHING, MOST_SCANS, NOTHING, Condition, Uids
from .logic import All, all_of
from .names import Names, names_of
from .spans import Received

__all__ = [
    "EVERYTHING",
    "MOST_SCANS",
    "NOTHING",
    "All",
    "Condition",
    "Names",
    "Received",
    "Uids",
    "all_of",
    "condition_of",
    "names_of",
]
