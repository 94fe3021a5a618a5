"""Operands of comparisons: their possible kinds, and their typed values."""

from .bounds import is_many, names_within, refuse_many
from .functions import condition, is_location, refuse_inside
from .kinds import common, described, is_condition, possible
from .literals import constant, instant
from .values import value, values

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
