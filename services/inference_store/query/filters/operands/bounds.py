"""Bounds on the values of one comparison."""

from collections.abc import Iterator, Sequence
from typing import Final

from inference_store.query.cql2.tree import Node
from inference_store.query.filters import typed
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Value

MOST_MANY: Final = 2
"""Names with several values in one comparison, which tests all their combinations."""
MOST_NAMES: Final = 8
"""Different names in one comparison: a row is joined for each."""


def refuse_many(node: Node, values: Sequence[Value], checking: FilterCheck) -> None:
    """Raise InvalidFilter for too many combinations of values."""
    leaves = [leaf for value in values for leaf in names_within(value)]
    if sum(map(is_many, leaves)) > MOST_MANY:
        message = f"at most {MOST_MANY} names with several values can stand in one comparison"
        raise meaningless(node, checking.source, message)
    if len(set(leaves)) > MOST_NAMES:
        message = f"at most {MOST_NAMES} different names can stand in one comparison"
        raise meaningless(node, checking.source, message)


def names_within(of: Value) -> Iterator[Value]:
    """Yield the names that a value is calculated from."""
    match of:
        case typed.Metadata() | typed.Property() | typed.Column():
            yield of
        case typed.Calculated():
            yield from names_within(of.left)
            yield from names_within(of.right)
        case typed.Folded():
            yield from names_within(of.of)


def is_many(of: Value) -> bool:
    """Check whether one inference may have several values of a name."""
    if isinstance(of, typed.Metadata):
        return of.many
    return isinstance(of, typed.Property) and of.name == "inference_ids"
