"""A distance that stands by itself, as what a page is sorted by."""

import re
from typing import Final

from inference_store.query.cql2 import parse_text
from inference_store.query.cql2.tree import Node, Operation

from . import operands
from .check import to_predicate
from .checking import Checking
from .known import Known
from .refusals import meaningless
from .typed import Distance

EXAMPLE: Final = "distance(location, POINT(13.4 52.5))"
PATH: Final = "sort"
_CALL: Final = re.compile(r"\s*distance\s*\(", re.IGNORECASE)


def is_distance(text: str) -> bool:
    """Whether a text is written as a distance, and not as a name."""
    return _CALL.match(text) is not None


def parse_distance(text: str) -> Node:
    """The tree of a text that `is_distance`. Raises InvalidFilter, NotKept."""
    return parse_text(text, path=PATH, takes="number")


def distance_of(node: Node, text: str, known: Known) -> Distance:
    """The distance that a tree is, as in a filter; `known`: the keys that it may name.

    Raises InvalidFilter, UnknownKey.
    """
    checking = Checking(known, to_predicate, text)
    if isinstance(node, Operation) and node.op == "distance":
        found = operands.value(node, "number", checking)
        assert isinstance(found, Distance)
        return found
    message = f"a page is sorted by a name or by a distance alone, as in {EXAMPLE}"
    raise meaningless(node, text, message, (EXAMPLE,))
