"""The interface of the pipeline to a log of events, which a broker implements."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .batch import AssignedPartition, OffsetRange


class Consumer(Protocol):
    """One member of a group of consumers. Each partition of a topic is assigned to one member.

    Every method that calls the broker raises KafkaError while it is unavailable, and is retried.
    `tests/consumer_contract.py` has the other rules of an implementation.
    """

    @property
    def assigned(self) -> Sequence[AssignedPartition]:
        """The partitions that are assigned now."""

    async def start(self) -> None:
        """Connect and join the group."""

    async def stop(self) -> None:
        """Leave the group, and revoke all partitions; nothing happens if it has not started."""

    def reset(self, assigned: AssignedPartition) -> None:
        """Drop the in-flight records of a partition, and continue after the written ones."""

    async def poll(self) -> list[OffsetRange]:
        """Return the next records of every assigned partition; empty if none come for a while.

        It is called again at once, so it waits a little for records. The ranges of a
        partition follow each other without a gap, after the written offsets.
        """

    async def find_ends(self) -> dict[AssignedPartition, int]:
        """Return the end offset of each readable partition."""

    async def commit(self, ranges: Iterable[OffsetRange]) -> None:
        """Tell the broker the written offsets, for lag tools; it never fails."""
