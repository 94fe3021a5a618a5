"""Writing a batch: rows, books, dead letters, parked events and references, all or nothing."""

from .guards import ErasedMeanwhile, RegistrationGone
from .writer import Outcomes, Writer

__all__ = ["ErasedMeanwhile", "Outcomes", "RegistrationGone", "Writer"]
