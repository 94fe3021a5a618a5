"""What stands in a comparison: which kinds it can be, and the typed value of one of them."""

from .bounds import is_many, names_within, refuse_many
from .functions import condition, is_location, refuse_inside
from .kinds import common, described, is_condition, possible
from .values import value, values
from .written import constant, instant

__all__ = [
    "common",
    "condition",
    "constant",
    "described",
    "instant",
    "is_condition",
    "is_location",
    "is_many",
    "names_within",
    "possible",
    "refuse_inside",
    "refuse_many",
    "value",
    "values",
]
