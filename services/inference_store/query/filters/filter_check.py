"""The state of one check of a filter: its inputs, and the results so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.plural import counted
from inference_store.query.cql2.tree import Node

from .known_keys import KnownKey, KnownKeys, UnknownKeys
from .refusals import meaningless
from .typed import Kind, Predicate

MOST_PAIRS: Final = 10_000
"""The most pairs of edges and points of literal geometries that a filter compares."""
MOST_TWICE: Final = 2
"""The most nested conditions that each evaluate the inner one twice."""


@dataclass(slots=True)
class FilterCheck:
    """One check. `source`: the filter's text, if it was text; errors show their place in it."""

    known_keys: KnownKeys
    to_predicate: "Callable[[Node, FilterCheck], Predicate]"
    """The function that checks a condition, for functions with one as an argument."""
    source: str | None = None
    unknown_keys: UnknownKeys = "refuse"
    is_saved: bool = False
    """Whether it was saved before: impossible values are no longer refused."""
    inside: bool = False
    """Whether the check is inside `prediction(…)`, where names are columns."""
    twice: int = 0
    """The number of surrounding conditions that evaluate the inner one twice."""
    pairs: int = 0
    """The number of pairs of edges and points that were compared."""
    keys: dict[str, KnownKey] = field(default_factory=dict)
    """The keys in the filter."""
    warnings: dict[str, None] = field(default_factory=dict)

    def warn(self, sentence: str) -> None:
        """Add a warning, once however often it occurs."""
        self.warnings[sentence] = None

    def warn_of_others(self, key: KnownKey, kind: Kind) -> None:
        """Warn that some values of the key are of another kind."""
        others = key.others.get(kind, 0)
        if others:
            self.warn(
                f"The key {key.name!r} has been seen as {', '.join(key.types)}: it is compared "
                f"as a {kind}, and {counted(others, 'value is', 'values are')} not of that type."
            )

    def hold(self, pairs: int, node: Node) -> None:
        """Count pairs of edges and points to compare. Raises InvalidFilter for too many."""
        self.pairs += pairs
        if self.pairs > MOST_PAIRS:
            message = "geometries that are written out have too many corners to be compared"
            raise meaningless(node, self.source, message)

    @contextmanager
    def evaluated_twice(self, node: Node) -> Iterator[None]:
        """Count the condition within as evaluated twice: if it is true, and if it is false."""
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
        """Resolve the names within as columns of a prediction."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
