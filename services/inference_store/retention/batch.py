"""What is erased at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.erasure.delete.own_metadata import Moves
from inference_store.erasure.mark.marks import Mark, Place
from inference_store.index.identities import Identity


@dataclass(frozen=True, slots=True)
class Batch:
    """What may be erased now: the marks that no hold keeps, and the objects that may go."""

    page: Sequence[Mark]
    doomed: frozenset[str]
    # the last mark that was looked at; None: there are no more
    last: Place | None
    # whether a hold keeps some of what was looked at
    spared: bool = False
    # metadata blobs to be written beside those that others point to
    moves: Moves = field(default_factory=dict)

    @property
    def identities(self) -> set[Identity]:
        """Whose marks they are."""
        return {(mark.model, mark.uid) for mark in self.page}


NOTHING: Final = Batch((), frozenset(), None)
