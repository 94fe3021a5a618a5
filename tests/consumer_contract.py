"""The contract of every `Consumer` that the pipeline relies on, with any broker."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

from inference_store.ingester.batch import Consumer, OffsetRange
from tests.polling import until


class World(ABC):
    """A topic of two partitions, and a group that reads it."""

    @abstractmethod
    def make_consumer(self) -> Consumer:
        """Return a new member of the group; it has not started."""

    @abstractmethod
    async def append(self, partition: int, *payloads: bytes) -> None:
        """Add records at the end of a partition."""

    @abstractmethod
    async def write(self, offset_range: OffsetRange) -> None:
        """Do what a writer does: the group continues after this range."""


async def read(consumer: Consumer, count: int) -> list[OffsetRange]:
    """Poll until there are `count` records; return their ranges."""
    ranges: list[OffsetRange] = []

    async def poll() -> int:
        ranges.extend(await consumer.poll())
        return sum(len(offset_range.records) for offset_range in ranges)

    await until(poll, lambda number: number >= count)
    return ranges


def list_payloads(ranges: Iterable[OffsetRange], partition: int) -> list[bytes]:
    """Return the payloads of a partition's records in order."""
    own_ranges = (
        offset_range for offset_range in ranges if offset_range.assigned.partition == partition
    )
    return [record.payload for offset_range in own_ranges for record in offset_range.records]


def list_bounds(ranges: Sequence[OffsetRange], partition: int) -> list[tuple[int, int]]:
    """Return the ranges of a partition in order."""
    return [
        (offset_range.lo, offset_range.hi)
        for offset_range in ranges
        if offset_range.assigned.partition == partition
    ]


@asynccontextmanager
async def started(consumer: Consumer) -> AsyncIterator[Consumer]:
    """A consumer that runs."""
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _do_nothing() -> None:
    """Take one turn of the event loop."""


class ConsumerContract:
    """Tests of a consumer in a `world`, which a subclass has as a fixture."""

    async def test_reads_every_offset_once_and_in_order(self, world: World) -> None:
        async with started(world.make_consumer()) as consumer:
            await world.append(0, b"a", b"b")
            await world.append(1, b"c")
            ranges = await read(consumer, 3)
            await world.append(0, b"d")
            ranges += await read(consumer, 1)
            assert list_payloads(ranges, 0) == [b"a", b"b", b"d"]
            assert list_payloads(ranges, 1) == [b"c"]
            bounds = list_bounds(ranges, 0)
            assert (bounds[0][0], bounds[-1][1]) == (0, 3)
            assert all(previous[1] == following[0] for previous, following in pairwise(bounds))
            assert {offset_range.assigned for offset_range in ranges} == set(consumer.assigned)
            ends = await consumer.find_ends()
            assert {assigned.partition: end for assigned, end in ends.items()} == {0: 3, 1: 1}
            for _ in range(2):
                await consumer.commit(ranges)

    async def test_continues_after_what_is_written_after_a_reset(self, world: World) -> None:
        async with started(world.make_consumer()) as consumer:
            await world.append(0, b"a")
            [written] = await read(consumer, 1)
            await world.write(written)
            await world.append(0, b"b")
            [lost] = await read(consumer, 1)
            consumer.reset(lost.assigned)
            assert lost.assigned.is_revoked
            assert lost.assigned not in consumer.assigned
            [again] = await read(consumer, 1)
            assert (again.lo, again.hi) == (1, 2)
            assert list_payloads([again], 0) == [b"b"]
            assert again.assigned in consumer.assigned
            consumer.reset(lost.assigned)  # it is no longer assigned: this does nothing
            assert again.assigned in consumer.assigned

    async def test_next_consumer_continues_after_what_is_written(self, world: World) -> None:
        first = world.make_consumer()
        await first.start()
        await world.append(0, b"a")
        [written] = await read(first, 1)
        await world.write(written)
        await first.stop()
        assert written.assigned.is_revoked
        assert not first.assigned
        await first.stop()
        await world.append(0, b"b")
        async with started(world.make_consumer()) as second:
            [offset_range] = await read(second, 1)
            assert (offset_range.lo, offset_range.hi, list_payloads([offset_range], 0)) == (
                1,
                2,
                [b"b"],
            )

    async def test_empty_poll_lets_other_tasks_run(self, world: World) -> None:
        """The pipeline polls again at once: a poll that never yields would block the others."""
        async with started(world.make_consumer()) as consumer:
            other = asyncio.create_task(_do_nothing())
            assert await consumer.poll() == []
            assert other.done()

    async def test_stops_without_a_start(self, world: World) -> None:
        consumer = world.make_consumer()
        await consumer.stop()
        assert not consumer.assigned
