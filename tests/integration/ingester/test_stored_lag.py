"""The lag in Kafka is stored in Postgres for the api, even while nothing is written."""

import asyncio
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Account
from inference_store.ingester.watch import Watch
from tests.memory_consumer import MemoryConsumer, MemoryLog
from tests.polling import until


async def test_stores_the_lag_while_nothing_is_written(engine: AsyncEngine) -> None:
    log = MemoryLog(partitions=2)
    for _ in range(3):
        log.append(0, b"{}")
    consumer, stop = MemoryConsumer(log), asyncio.Event()
    await consumer.start()
    [read] = await consumer.poll()
    async with engine.begin() as connection:
        for assigned in consumer.assigned:
            assert assigned.partition_id is not None
            await accounting.open_partition(
                connection, assigned.partition_id, first=0, began="first"
            )
    watching = asyncio.create_task(Watch(consumer, engine, stop).run())
    try:
        busy, idle = await until(partial(_list_accounts, engine), _are_measured)
    finally:
        stop.set()
        await watching
    assert (busy.waiting, busy.oldest_waiting_at) == (3, read.records[0].time)
    assert (idle.waiting, idle.oldest_waiting_at) == (0, None)


async def _list_accounts(engine: AsyncEngine) -> list[Account]:
    async with engine.connect() as connection:
        return await accounting.list_accounts(connection)


def _are_measured(accounts: list[Account]) -> bool:
    return all(account.lag_measured_at is not None for account in accounts)
