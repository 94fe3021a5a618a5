"""How much one aggregate may hold in memory, over all its measures, models and partitions."""

from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.errors import TooManyGroups

# What a part answers at most: groups, or groups and values. All that is held: twice as much.
MOST_ROWS: Final = 100_000


@dataclass(slots=True)
class Budget:
    """The rows that may still be held, once what is the same has been put together."""

    most_of_a_part: int = field(default_factory=lambda: MOST_ROWS)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = 2 * self.most_of_a_part

    def take(self) -> None:
        """Hold one row more. Raises TooManyGroups."""
        if self.left == 0:
            raise TooManyGroups(
                f"The measures have more than {2 * self.most_of_a_part:,} groups, or different"
                " values in groups, together: ask for fewer at once, narrow the conditions, group"
                " by fewer names, or by a histogram."
            )
        self.left -= 1

    def part_too_large(self) -> TooManyGroups:
        """One part alone has more rows than it may."""
        return TooManyGroups(
            f"There are more than {self.most_of_a_part:,} groups, or different values in groups:"
            " narrow the conditions, group by fewer names, or by a histogram."
        )
