"""Conditions in SQL, and the typed filter made into them."""

from .certain import certainly, flagged
from .comparisons import Comparing
from .compiled import condition_of
from .condition import EVERYTHING, NOTHING, Condition, Uids
from .keys import OfKey
from .logic import All, Neither, all_of, split_driving, tests
from .names import Names, names_of
from .spans import Received

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "All",
    "Comparing",
    "Condition",
    "Names",
    "Neither",
    "OfKey",
    "Received",
    "Uids",
    "all_of",
    "certainly",
    "condition_of",
    "flagged",
    "names_of",
    "split_driving",
    "tests",
]
