"""One broker that is unavailable keeps no partition of the others from being read."""

import asyncio
import re
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, NodeNotReadyError

from inference_store.index.accounting import PartitionId
from inference_store.ingester import batch, kafka_consumer
from inference_store.ingester.batch import AssignedPartition, Positions
from inference_store.ingester.kafka_consumer import KafkaConsumer, name_instance
from inference_store.ingester.record_batches import close_consumer
from inference_store.platform.settings import IngesterSettings
from tests.settings import make_settings

ID = UUID(int=7)
NEAR, FAR = TopicPartition("events", 0), TopicPartition("events", 1)


class Brokers:
    """A consumer of a topic whose partitions are each led by the broker of the same number."""

    def __init__(self, away: set[int] | None = None, silent: set[int] | None = None) -> None:
        self._client = self.cluster = self
        self.away, self.silent = away or set(), silent or set()
        self.polled: list[dict[TopicPartition, list[object]]] = []
        self.node_requests: list[int] = []

    def leader_for_partition(self, tp: TopicPartition) -> int:
        return int(tp.partition)

    async def send(self, node: int, *_: object, **__: object) -> object:
        await self.answer(node)
        return SimpleNamespace(topics=[(0, "events", ID)])

    async def answer(self, node: int) -> None:
        self.node_requests.append(node)
        if node in self.silent:
            await asyncio.Event().wait()
        if node in self.away:
            raise NodeNotReadyError(f"broker {node}")

    async def getmany(self, **_: object) -> dict[TopicPartition, list[object]]:
        return self.polled.pop(0) if self.polled else {}

    async def beginning_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        for tp in tps:
            await self.answer(tp.partition)
        return dict.fromkeys(tps, 0)

    end_offsets = beginning_offsets

    async def topics(self) -> set[str]:
        return {"events"}


class Placing(Positions):
    """Positions of partitions whose brokers answer; a range is what was polled."""

    async def seek(self, tp: TopicPartition, assigned: AssignedPartition) -> None:
        await self._find_bounds(tp)
        assigned.partition_id = PartitionId("kafka", tp.topic, 0, tp.partition)

    async def build_range(self, _: object, assigned: AssignedPartition, records: Any) -> Any:
        read = SimpleNamespace(assigned=assigned, records=records)
        return read if assigned.partition_id else None

    async def build_passed_range(self, *_: object) -> None:
        return None


def make_consumer(brokers: Brokers) -> KafkaConsumer:
    settings = make_settings(IngesterSettings, kafka_topic="events")
    engine: Any = None
    topic = KafkaConsumer(settings, engine)
    kafka: Any = brokers
    topic._joined = Placing(settings, engine, kafka)
    topic.on_partitions_assigned([NEAR, FAR])
    return topic


def list_placed(topic: KafkaConsumer) -> list[int]:
    return [
        assigned.tp.partition for assigned in topic.assigned if assigned.partition_id is not None
    ]


async def read(topic: KafkaConsumer, brokers: Brokers) -> list[int]:
    """The partitions that records came of, out of one poll that has some of the first."""
    brokers.polled = [{NEAR: ["record"]}]
    return [offset_range.assigned.tp.partition for offset_range in await topic.poll()]


async def test_partitions_are_placed_and_read_without_the_one_whose_broker_is_away() -> None:
    brokers = Brokers(away={1})
    topic = make_consumer(brokers)
    assert await read(topic, brokers) == [0]
    assert list_placed(topic) == [0]
    brokers.node_requests.clear()
    # and it is not asked at every poll
    assert await read(topic, brokers) == [0]
    assert 1 not in brokers.node_requests
    brokers = Brokers()
    topic = make_consumer(brokers)
    await topic.poll()
    assert list_placed(topic) == [0, 1]
    brokers.away = {1}
    assert await read(topic, brokers) == [0]
    brokers = Brokers(away={0, 1})
    topic = make_consumer(brokers)
    for _ in range(2):
        with pytest.raises(KafkaError, match="broker"):
            await topic.poll()
    brokers.away = set()
    assert await read(topic, brokers) == [0]


async def test_it_is_placed_once_its_broker_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_store.ingester.kafka_consumer._SEEK_SECONDS", 0.0)
    brokers = Brokers(away={1})
    topic = make_consumer(brokers)
    await topic.poll()
    brokers.away = set()
    await topic.poll()
    assert list_placed(topic) == [0, 1]


async def test_a_silent_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumer, "_ANSWER_SECONDS", 0)
    monkeypatch.setattr(batch, "_BOUNDS_SECONDS", 0)
    brokers = Brokers(silent={1})
    assert await read(make_consumer(brokers), brokers) == [0]


class Fetching(Brokers):
    """Stops half-way, with the CancelledError of a fetch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._coordinator = None
        self.closed = False

    async def stop(self) -> None:
        raise asyncio.CancelledError

    async def close(self) -> None:
        self.closed = True


async def test_a_consumer_that_stops_midway_does_not_end_others() -> None:
    brokers = Fetching()
    topic = make_consumer(brokers)
    await topic.stop()
    assert brokers.closed
    assert not topic.assigned
    await topic.stop()


def test_an_ingester_has_the_same_name_after_a_restart() -> None:
    def name(**changes: Any) -> str | None:
        return name_instance(make_settings(IngesterSettings, **changes))

    host = socket.gethostname()
    assert name(ingester_instance="pod-1", ingester_admin_port=0) == "pod-1"
    assert name(ingester_admin_port=9101) == f"{re.sub('[^A-Za-z0-9._-]', '-', host)}-9101"
    assert name(ingester_admin_port=0) is None, "nothing tells two of a host apart"


async def test_a_consumer_leaves_the_group_without_its_instance_id() -> None:
    """Kafka waits for a member with a name of its own; aiokafka says nothing for it."""
    instance_ids = []

    class Leaving:
        _coordinator = SimpleNamespace(_group_instance_id="pod-1")

        async def stop(self) -> None:
            instance_ids.append(self._coordinator._group_instance_id)

    consumer: Any = Leaving()
    await close_consumer(consumer)
    assert instance_ids == [None]
