"""How much a filter asks: what its SQL is long by, and takes time to build, compile and plan."""

from dataclasses import fields, is_dataclass
from typing import Any, Final

from .typed import (
    And,
    Column,
    Constant,
    Metadata,
    Not,
    Or,
    Predicate,
    PredicateValue,
    Property,
    Sets,
    Unknown,
)

MOST: Final = 5_000
"""A filter is no larger, once all is written out that it asks for several times."""

# Of these SQL has no more than a word, beside the comparison that they stand in.
_FREE: Final = (And, Or, Not, Constant, Metadata, Property, Column)


def comparisons_in(predicate: Predicate) -> int:
    """How many comparisons, predicates and calculations there are in it; no further than one more
    than `MOST`."""
    number = 0
    waiting: list[Any] = [predicate]
    while waiting and number <= MOST:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node) and not isinstance(node, Constant):
            number += _weight(node)
            inside = [getattr(node, each.name) for each in fields(node)]
            # when they are true, and when false
            waiting.extend(inside * 2 if isinstance(node, PredicateValue | Unknown) else inside)
    return min(number, MOST + 1)


def _weight(node: Any) -> int:
    if isinstance(node, Sets):
        # each value is there or not, and in the other set or not
        return 4 * sum(map(len, (*node.one, *node.other)))
    return int(not isinstance(node, _FREE))
