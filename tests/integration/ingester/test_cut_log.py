"""A log cut before it was read: deleted records are listed as lost, the others are stored."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from tests.integration.ingester.conftest import RunningIngester, wait_for_counts
from tests.producer import capture
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka

pytestmark = pytest.mark.real_kafka
EVENTS = [capture(number) for number in range(8)]


async def test_what_lies_before_the_records_that_are_left_is_lost(
    running: RunningIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    service, producer = running
    await producer.produce(*EVENTS[:2])
    await wait_for_counts(engine, stored=2)
    service.stop()
    await producer.produce(*EVENTS[2:5])
    await asyncio.to_thread(kafka_server.delete_records, producer.topic)
    await producer.produce(*EVENTS[5:])
    service.restart(KAFKA_GROUP=unique("group"))
    await wait_for_counts(engine, stored=5, lost=3)
    async with engine.connect() as connection:
        [account] = await accounting.list_accounts(connection)
    assert account.lost == [(2, 5)]
