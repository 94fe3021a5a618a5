"""A distance alone, by which a page is sorted."""

import re
from typing import Final

from inference_store.query.cql2 import parse_text
from inference_store.query.cql2.tree import Node, Operation

from . import operands
from .check import to_predicate
from .filter_check import FilterCheck
from .known_keys import KnownKeys
from .refusals import meaningless
from .typed import Distance

EXAMPLE: Final = "distance(location, POINT(13.4 52.5))"
PATH: Final = "sort"
_CALL: Final = re.compile(r"\s*distance\s*\(", re.IGNORECASE)


def is_distance(text: str) -> bool:
    """Check whether a text is written as a distance, not as a name."""
    return _CALL.match(text) is not None


def parse_distance(text: str) -> Node:
    """Return the tree of a text that `is_distance`. Raises InvalidFilter, NotKept."""
    return parse_text(text, path=PATH, takes="number")


def distance_of(node: Node, text: str, known: KnownKeys) -> Distance:
    """Return the distance of a tree, as in a filter; `known`: the keys that it may name.

    Raises InvalidFilter, UnknownKey.
    """
    checking = FilterCheck(known, to_predicate, text)
    if isinstance(node, Operation) and node.op == "distance":
        distance = operands.value(node, "number", checking)
        assert isinstance(distance, Distance)
        return distance
    message = f"a page is sorted by a name or by a distance alone, as in {EXAMPLE}"
    raise meaningless(node, text, message, (EXAMPLE,))
