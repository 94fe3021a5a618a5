"""Conditions in SQL, and how a typed filter is compiled to them."""

from .combination import Names, read_names
from .comparisons import Comparing
from .compiled import compile_certain, compile_condition, test_flags
from .condition import (
    EVERYTHING,
    NOTHING,
    All,
    Condition,
    Neither,
    Received,
    Uids,
    build_tests,
    combine_all,
    split_driving,
)
from .keys import OfKey

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
