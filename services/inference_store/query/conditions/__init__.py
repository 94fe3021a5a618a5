"""Conditions in SQL, and how a typed filter is compiled to them."""

from .combination import Names, read_names
from .compiled import compile_certain, compile_condition, test_flags
from .condition import Condition

__all__ = [
    "Condition",
    "Names",
    "compile_certain",
    "compile_condition",
    "read_names",
    "test_flags",
]
