"""Callers, and what they may do with which models."""

from inference_store.access.rights import Action, Who

from .rights import EVERYTHING, AccessScope, Caller

__all__ = ["EVERYTHING", "AccessScope", "Action", "Caller", "Who"]
