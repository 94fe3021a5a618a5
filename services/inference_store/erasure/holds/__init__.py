"""Legal holds: filters whose inferences nothing may delete. NULL protects, and so does a doubt."""

from .changes import apply_changed, apply_placed, apply_released, block_placement
from .conditions import build_held_condition, find_holds, list_in_force
from .evaluation import is_held
from .hold import Hold
from .hold_filter import HoldCriteria, HoldFilter, build_filter
from .queries import find_hold, list_holds, list_revisions

__all__ = [
    "Hold",
    "HoldCriteria",
    "HoldFilter",
    "apply_changed",
    "apply_placed",
    "apply_released",
    "block_placement",
    "build_filter",
    "build_held_condition",
    "find_hold",
    "find_holds",
    "is_held",
    "list_holds",
    "list_in_force",
    "list_revisions",
]
