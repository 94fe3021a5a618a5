"""The consumer in memory, which tests of the pipeline may use, keeps what Kafka's keeps."""

import pytest

from inference_store.ingester.batch import OffsetRange
from inference_store.ingester.consumer import Consumer
from tests.consumer_contract import ConsumerContract, World
from tests.memory_consumer import MemoryConsumer, MemoryLog


class MemoryWorld(World):
    """A log in memory."""

    def __init__(self) -> None:
        self._log = MemoryLog(partitions=2)

    def make_consumer(self) -> Consumer:
        return MemoryConsumer(self._log)

    async def append(self, partition: int, *payloads: bytes) -> None:
        for payload in payloads:
            self._log.append(partition, payload)

    async def write(self, offset_range: OffsetRange) -> None:
        self._log.written[offset_range.assigned.partition] = offset_range.hi


class TestMemoryConsumer(ConsumerContract):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()
