"""The subject of offset accounting: a partition, the position in it, and the outcomes of an
offset."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of an offset. This is the one list of them; each has a column of its name."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    PARKED = "parked"
    EXPIRED = "expired"
    ERASED_AGAIN = "erased_again"
    LOST = "lost"
    NOT_DELIVERED = "not_delivered"


class ConsumerFenced(Exception):
    """Another consumer has moved this partition on: discard the batch, and find the position."""


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A partition of a topic in a cluster; a topic that is created again has a new epoch."""

    cluster: str
    topic: str
    epoch: int
    partition: int

    @property
    def values(self) -> dict[str, str | int]:
        """The values of its columns."""
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "epoch": self.epoch,
            "partition": self.partition,
        }


@dataclass(frozen=True, slots=True)
class Position:
    """The offset at which reading continues, and the record by which the topic is recognised."""

    partition_id: PartitionId
    next: int
    last_offset: int | None
    last_hash: bytes | None
