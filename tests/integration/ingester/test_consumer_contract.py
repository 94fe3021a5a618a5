"""The Kafka consumer fulfils the contract that the pipeline relies on."""

from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.ingester.batch import Consumer, OffsetRange
from inference_store.ingester.kafka_consumer import KafkaConsumer
from inference_store.platform.settings import IngesterSettings
from tests.consumer_contract import ConsumerContract, World
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.settings import make_settings


class KafkaWorld(World):
    """A Kafka topic, with the positions in Postgres."""

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, producer: AIOKafkaProducer
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer

    def make_consumer(self) -> Consumer:
        return KafkaConsumer(self._settings, self._engine)

    async def append(self, partition: int, *payloads: bytes) -> None:
        for payload in payloads:
            await self._producer.send_and_wait(
                self._settings.kafka_topic, payload, partition=partition
            )

    async def write(self, offset_range: OffsetRange) -> None:
        async with self._engine.begin() as connection:
            await accounting.move_offsets(
                connection,
                offset_range.partition_id,
                lo=offset_range.lo,
                hi=offset_range.hi,
                outcomes={Outcome.STORED: offset_range.hi - offset_range.lo},
                last=offset_range.last,
            )


class TestKafkaConsumer(ConsumerContract):
    @pytest.fixture
    async def world(
        self, kafka_server: Kafka, topic: Callable[..., str], engine: AsyncEngine
    ) -> AsyncIterator[World]:
        servers = kafka_server.bootstrap_servers
        settings = make_settings(
            IngesterSettings,
            kafka_bootstrap_servers=servers,
            kafka_topic=topic(2),
            kafka_group=unique("group"),
        )
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            yield KafkaWorld(settings, engine, producer)
