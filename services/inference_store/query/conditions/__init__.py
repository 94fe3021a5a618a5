"""Conditions in SQL, and how a typed filter is compiled to them."""

from .combination import Names as Names
from .combination import list_labels as list_labels
from .combination import read_names as read_names
from .compiled import compile_certain as compile_certain
from .compiled import compile_condition as compile_condition
from .compiled import compile_wanted as compile_wanted
from .compiled import test_flags as test_flags
from .condition import Condition as Condition
