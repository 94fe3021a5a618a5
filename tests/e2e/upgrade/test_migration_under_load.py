"""A migration while events are written and queries run: nothing is lost, nobody waits for long."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.migration import upgrade
from tests.e2e.faults.books_close import check_ingested
from tests.e2e.faults.traffic import Published, make_captures
from tests.polling import until
from tests.producer import Producer
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.synthetic_migration import NEXT, copy_migrations_with_one_more


async def read_until(
    database: str, reading: asyncio.Event, in_the_way: asyncio.Event, published: Published
) -> None:
    """Read `inference` in a transaction that stays open until it has stood in the way of the
    migration, and meanwhile others have read, and more has been published.

    If the migration waited for its locks without an end, the others would wait behind it.
    """
    connection, other = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.fetchval("SELECT count(*) FROM inference")
            reading.set()
            async with asyncio.timeout(300):
                await in_the_way.wait()
            await other.fetch("SELECT 1 FROM inference JOIN kafka_partition ON true LIMIT 1")
            before = len(published.captures)
            await until(lambda: count(published), lambda number: number > before)
    finally:
        await connection.close()
        await other.close()


async def count(published: Published) -> int:
    return len(published.captures)


async def publish_until(stop: asyncio.Event, published: Published) -> None:
    """Publish until `stop`, however fast the machine is."""
    start = 0
    while not stop.is_set():
        await published.under_load(make_captures(range(start, start + 50)))
        start += 50


async def test_nothing_is_lost_and_no_lock_is_held_long(
    database: str,
    engine: AsyncEngine,
    service_environment: MakeEnvironment,
    bucket: str,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    settings = service_environment(
        KAFKA_TOPIC=topic(2),
        KAFKA_GROUP=unique(),
        INGESTER_BATCH_EVENTS="50",
        INGESTER_POLL_SECONDS="0.1",
    )
    sentences: list[str] = []
    migrated = asyncio.Event()
    reading, in_the_way = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def say(sentence: str) -> None:
        sentences.append(sentence)
        if "hold a lock" in sentence:
            loop.call_soon_threadsafe(in_the_way.set)

    ingester = Service("ingester", settings, tmp_path)
    try:
        await asyncio.to_thread(ingester.wait_ready)
        async with Producer(settings, settings["INFERENCE_STORE_KAFKA_TOPIC"]) as producer:
            published = Published(producer)
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(publish_until(migrated, published))
                await asyncio.to_thread(
                    wait_until,
                    lambda: ingester.metrics("ingester_events_total") > 200,
                    seconds=180,
                    what="some traffic",
                )
                reader = tasks.create_task(read_until(database, reading, in_the_way, published))
                await reading.wait()
                before = len(published.captures)
                await asyncio.to_thread(
                    upgrade,
                    database,
                    say=say,
                    migrations=copy_migrations_with_one_more(tmp_path),
                )
                assert len(published.captures) > before, "the migration was not under load"
                migrated.set()
                await asyncio.gather(load, reader)
            await check_ingested(engine, published.captures, bucket, records=published.records)
    finally:
        ingester.stop()
    assert in_the_way.is_set(), sentences
    assert sentences[-1] == f"The schema is {NEXT}."
