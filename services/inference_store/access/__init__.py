"""Who may do what with which models."""

from .audit import Action, Who
from .caller import Caller
from .reach import EVERYTHING, Reach

__all__ = ["EVERYTHING", "Action", "Caller", "Reach", "Who"]
