"""How much a filter asks: what its SQL is long by, and takes time to build, compile and plan."""

from dataclasses import fields, is_dataclass
from typing import Any, Final

from .typed import And, Column, Constant, Metadata, Not, Or, Property, Truth

# Of these SQL has no more than a word, beside the comparison that they stand in.
_FREE: Final = (And, Or, Not, Constant, Metadata, Property, Column)


def comparisons_in(truth: Truth) -> int:
    """How many comparisons, predicates and calculations there are in it."""
    number = 0
    waiting: list[Any] = [truth]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node) and not isinstance(node, Constant):
            number += not isinstance(node, _FREE)
            waiting.extend(getattr(node, each.name) for each in fields(node))
    return number
