"""Legal holds: filters whose inferences nothing may delete. NULL protects, a doubt too."""

from .force import holding, in_force, predicate
from .hold import Hold
from .making import Asked, Made, make
from .meaning import held
from .placing import apply_changed, apply_placed, apply_released, edits_wait
from .stored import find, history, listed

__all__ = [
    "Asked",
    "Hold",
    "Made",
    "apply_changed",
    "apply_placed",
    "apply_released",
    "edits_wait",
    "find",
    "held",
    "history",
    "holding",
    "in_force",
    "listed",
    "make",
    "predicate",
]
