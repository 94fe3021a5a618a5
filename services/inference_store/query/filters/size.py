"""The size of a filter, which decides the time to build, compile and plan its SQL."""

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
"""The largest size of a filter, with the parts that are evaluated several times expanded."""

# In SQL these are a single word, besides the comparison that contains them.
_FREE: Final = (And, Or, Not, Constant, Metadata, Property, Column)


def comparisons_in(predicate: Predicate) -> int:
    """Count the comparisons, predicates and calculations, up to `MOST` + 1."""
    number = 0
    waiting: list[Any] = [predicate]
    while waiting and number <= MOST:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node) and not isinstance(node, Constant):
            number += _weight(node)
            inside = [getattr(node, member.name) for member in fields(node)]
            # once for true, once for false
            waiting.extend(inside * 2 if isinstance(node, PredicateValue | Unknown) else inside)
    return min(number, MOST + 1)


def _weight(node: Any) -> int:
    if isinstance(node, Sets):
        # each value exists or not, and is in the other set or not
        return 4 * sum(map(len, (*node.left, *node.right)))
    return int(not isinstance(node, _FREE))
