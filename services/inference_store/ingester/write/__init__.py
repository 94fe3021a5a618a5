"""Writes a batch: rows, accounting, dead letters, parked events and references, all or nothing."""

from .guards import ErasedMeanwhile, RegistrationGone, keep
from .writer import Settled, Writer

__all__ = ["ErasedMeanwhile", "RegistrationGone", "Settled", "Writer", "keep"]
