"""One check of a filter: what is known when it starts, and what was found on the way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.plural import counted
from inference_store.query.cql2.tree import Node

from .known import Known, KnownKey, UnknownKeys
from .refusals import meaningless
from .typed import Kind, Predicate

MOST_PAIRS: Final = 10_000
"""Edges and points of geometries times those of others, where both are written out: of a filter."""
MOST_TWICE: Final = 2
"""Conditions inside each other of which each asks twice for what is inside."""


@dataclass(slots=True)
class Checking:
    """`source`: the filter's text, where it was text; places are shown in it."""

    known: Known
    to_predicate: "Callable[[Node, Checking], Predicate]"
    """How a condition is checked, for the functions that take one."""
    source: str | None = None
    unknown_keys: UnknownKeys = "refuse"
    kept: bool = False
    """It was saved before: what values it names is refused no more."""
    inside: bool = False
    """Within `prediction(…)`, where names are columns."""
    twice: int = 0
    """How many conditions stand around that are asked when they are true, and when false."""
    pairs: int = 0
    """How many edges and points were held against each other."""
    keys: dict[str, KnownKey] = field(default_factory=dict)
    """The keys that were named."""
    warnings: dict[str, None] = field(default_factory=dict)

    def warn(self, sentence: str) -> None:
        """Once, however often it is said."""
        self.warnings[sentence] = None

    def warn_of_others(self, key: KnownKey, kind: Kind) -> None:
        """That some values of the key are of another kind."""
        others = key.others.get(kind, 0)
        if others:
            self.warn(
                f"The key {key.name!r} has been seen as {', '.join(key.types)}: it is compared "
                f"as a {kind}, and {counted(others, 'value is', 'values are')} not of that type."
            )

    def hold(self, pairs: int, node: Node) -> None:
        """So many edges and points against each other. Raises InvalidFilter for too many."""
        self.pairs += pairs
        if self.pairs > MOST_PAIRS:
            message = "geometries that are written out have too many corners to be compared"
            raise meaningless(node, self.source, message)

    @contextmanager
    def asked_twice(self, node: Node) -> Iterator[None]:
        """The condition within is asked when it is true, and when it is false."""
        if self.twice == MOST_TWICE:
            message = (
                "conditions that are compared, or asked whether they are NULL, stand inside each "
                f"other at most {MOST_TWICE} deep: split the filter"
            )
            raise meaningless(node, self.source, message)
        self.twice += 1
        try:
            yield
        finally:
            self.twice -= 1

    @contextmanager
    def of_predictions(self) -> Iterator[None]:
        """The names within are columns of a prediction."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
