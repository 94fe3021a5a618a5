"""Who may do what with which models, and who did."""

from .audit import Action, Who, note
from .caller import Caller
from .reach import EVERYTHING, Reach, models_of

__all__ = ["EVERYTHING", "Action", "Caller", "Reach", "Who", "models_of", "note"]
