"""Callers, and what they may do with which models."""

from .audit import Action, Who
from .rights import EVERYTHING, AccessScope, Caller

__all__ = ["EVERYTHING", "AccessScope", "Action", "Caller", "Who"]
