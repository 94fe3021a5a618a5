"""The progress of a page's search, and when it stops."""

from dataclasses import dataclass
from uuid import UUID

from .deadline import Deadline


@dataclass(slots=True, kw_only=True)
class Progress:
    """`searched`: the uid up to which everything was checked; `out_of_time`: it stopped there."""

    deadline: Deadline
    goes_on: bool = False
    """Whether it continues an earlier page. A short walk is then not enough to answer: pages that
    all ended after one would never come through a large partition.
    """
    came_on: bool = False
    """Whether it came further than the short walk before an index drives."""
    searched: UUID | None = None
    out_of_time: bool = False

    @property
    def until(self) -> Deadline:
        """The deadline at which to stop: the soft end as soon as there is something to answer."""
        enough = self.came_on or (self.searched is not None and not self.goes_on)
        return self.deadline.early if enough else self.deadline
