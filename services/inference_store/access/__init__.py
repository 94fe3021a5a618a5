"""Callers, and what they may do with which models."""

from .rights import EVERYTHING as EVERYTHING
from .rights import AccessScope as AccessScope
from .rights import Action as Action
from .rights import Caller as Caller
from .rights import Who as Who
