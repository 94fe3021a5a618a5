"""Traffic for the fault matrix: captures over several days, redeliveries, and their count."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tests.producer import START, Capture, Producer, capture


def make_captures(numbers: range, *, days: int = 3, **changes: object) -> list[Capture]:
    """Captures spread over so many days, so that several partitions are made."""
    return [
        capture(
            number,
            received_at=START - timedelta(days=number % days, milliseconds=-number),
            **changes,
        )
        for number in numbers
    ]


@dataclass
class Published:
    """The captures that a producer has published, and the number of their records."""

    producer: Producer
    captures: list[Capture] = field(default_factory=list)
    records: int = 0

    async def publish(self, some: Sequence[Capture], *, again: int = 0) -> None:
        """Publish events, the first `again` of them twice; their blobs are there already."""
        await self.producer.publish_all(captured.event for captured in (*some, *some[:again]))
        self.captures += some
        self.records += len(some) + again

    async def under_load(
        self, some: Sequence[Capture], *, chunk: int = 50, pause: float = 0.1
    ) -> None:
        """Publish blobs and events bit by bit, a fifth of the events twice; Kafka may be away."""
        for start in range(0, len(some), chunk):
            piece = some[start : start + chunk]
            await self.producer.put_all(piece)
            await self.publish(piece, again=chunk // 5)
            await asyncio.sleep(pause)
