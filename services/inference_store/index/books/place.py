"""What the books are about: a partition, where it stands, and what an offset can become."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of an offset: the one list of its states. Each is a column of the books."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    PARKED = "parked"
    EXPIRED = "expired"
    ERASED_AGAIN = "erased_again"
    LOST = "lost"
    NOT_DELIVERED = "not_delivered"


class Fenced(Exception):
    """Another consumer has moved this partition on: drop what is in hand and look again."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A partition of a topic in a cluster; a topic made anew is a new epoch."""

    cluster: str
    topic: str
    epoch: int
    partition: int

    @property
    def values(self) -> dict[str, str | int]:
        """Its columns."""
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "epoch": self.epoch,
            "partition": self.partition,
        }


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on, and the record by which the topic is recognised."""

    place: Place
    next: int
    last_offset: int | None
    last_hash: bytes | None
