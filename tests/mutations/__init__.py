"""Mutants of the product: small faults put in by hand, each of which a test must detect."""

from .entries import MUTANTS
from .mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]
