"""Legal holds: filters whose inferences nothing may delete. NULL protects, and so does a doubt."""

from inference_store.erasure.holds.hold import (
    HoldCriteria,
    HoldFilter,
    build_filter,
    build_held_condition,
    find_holds,
    is_held,
    list_in_force,
)

from .changes import apply_changed, apply_placed, apply_released, block_placement
from .hold import Hold, find_hold, list_holds, list_revisions

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
