"""Conditions in SQL, and how a typed filter is compiled to them."""

from .combination import Names as Names
from .combination import read_names as read_names
from .comparisons import Comparing as Comparing
from .compiled import compile_certain as compile_certain
from .compiled import compile_condition as compile_condition
from .compiled import test_flags as test_flags
from .condition import EVERYTHING as EVERYTHING
from .condition import NOTHING as NOTHING
from .condition import All as All
from .condition import Condition as Condition
from .condition import Neither as Neither
from .condition import Received as Received
from .condition import Uids as Uids
from .condition import build_tests as build_tests
from .condition import combine_all as combine_all
from .condition import split_driving as split_driving
from .keys import OfKey as OfKey
