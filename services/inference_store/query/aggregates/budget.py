"""The memory that one aggregate may use, over all its measures, models and partitions."""

from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.errors import TooManyGroups

# The rows of one part's result, at most: groups, or groups and values. All parts: twice as many.
MOST_ROWS: Final = 100_000


@dataclass(slots=True)
class Budget:
    """The rows that may still be held, counted after equal ones were merged."""

    most_of_a_part: int = field(default_factory=lambda: MOST_ROWS)
    remaining: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = 2 * self.most_of_a_part

    def take(self) -> None:
        """Count one more row as held. Raises TooManyGroups."""
        if self.remaining == 0:
            raise TooManyGroups(
                f"The measures have more than {2 * self.most_of_a_part:,} groups, or different"
                " values in groups, together: ask for fewer at once, narrow the conditions, group"
                " by fewer names, or by a histogram."
            )
        self.remaining -= 1

    def part_too_large(self) -> TooManyGroups:
        """Return the error for a part that alone has too many rows."""
        return TooManyGroups(
            f"There are more than {self.most_of_a_part:,} groups, or different values in groups:"
            " narrow the conditions, group by fewer names, or by a histogram."
        )
