"""A batch: what an erasure erases at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.erasure.delete.own_metadata import Moves
from inference_store.erasure.mark.marks import Mark, Place
from inference_store.index.identities import Identity


@dataclass(frozen=True, slots=True)
class Batch:
    """What may be erased now: marks that no hold protects, and objects that may be deleted."""

    page: Sequence[Mark]
    doomed: frozenset[str]
    # the last mark that was checked; None: there are no more
    last: Place | None
    # whether a hold protects some of what was checked
    has_spared: bool = False
    # metadata blobs that are written to a new key, because other inferences use the old one
    moves: Moves = field(default_factory=dict)

    @property
    def identities(self) -> set[Identity]:
        """The inferences that the marks belong to."""
        return {(mark.model, mark.uid) for mark in self.page}


NOTHING: Final = Batch((), frozenset(), None)
