"""Conditions in SQL, and how a typed filter is compiled to them."""

from .certain import compile_certain, test_flags
from .comparisons import Comparing
from .compiled import compile_condition
from .condition import EVERYTHING, NOTHING, Condition, Uids
from .keys import OfKey
from .logic import All, Neither, build_tests, combine_all, split_driving
from .names import Names, read_names
from .time_received import Received

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
    "build_tests",
    "combine_all",
    "compile_certain",
    "compile_condition",
    "read_names",
    "split_driving",
    "test_flags",
]
