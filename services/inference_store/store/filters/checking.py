"""One check of a filter: what is known when it starts, and what was found on the way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inference_store.store.cql2.tree import Node

from .known import Known, KnownKey, UnknownKeys
from .typed import Kind, Truth


@dataclass(slots=True)
class Checking:
    """`source`: the filter's text, where it was text; places are shown in it."""

    known: Known
    truth_of: "Callable[[Node, Checking], Truth]"
    """How a condition is checked, for the functions that take one."""
    source: str | None = None
    unknown_keys: UnknownKeys = "refuse"
    inside: bool = False
    """Within `prediction(…)`, where names are columns."""
    unknowns: int = 0
    """How many `IS NULL` of a condition stand around."""
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
                f"as a {kind}, and {others} values are none."
            )

    @contextmanager
    def of_predictions(self) -> Iterator[None]:
        """The names within are columns of a prediction."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
