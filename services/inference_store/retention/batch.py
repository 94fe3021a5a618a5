"""A batch: the inferences that an erasure erases at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.erasure.delete.shared_metadata import Moves
from inference_store.erasure.mark.pending_deletions import PendingDeletion, Position
from inference_store.index.inferences import Identity


@dataclass(frozen=True, slots=True)
class Batch:
    """The marks that may be erased now because no hold protects them, and the deletable objects."""

    page: Sequence[PendingDeletion]
    doomed: frozenset[str]
    # the last mark that was checked; None: there are no more
    last: Position | None
    # whether a hold protects some of the checked marks
    has_spared: bool = False
    # metadata blobs that are written to a new key, because other inferences use the old one
    moves: Moves = field(default_factory=dict)

    @property
    def identities(self) -> set[Identity]:
        """The inferences that the marks belong to."""
        return {(mark.model, mark.uid) for mark in self.page}


NOTHING: Final = Batch((), frozenset(), None)
