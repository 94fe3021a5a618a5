"""Callers, and what they may do with which models."""

from .audit import Action, Who
from .caller import Caller
from .scope import EVERYTHING, AccessScope

__all__ = ["EVERYTHING", "AccessScope", "Action", "Caller", "Who"]
