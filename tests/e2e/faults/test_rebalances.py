"""Two ingesters in one group: they come, go, are killed and are frozen while events keep coming."""

import asyncio
import random
import signal
from pathlib import Path

import psutil
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.e2e.faults.traffic import (
    Published,
    check_ingested,
    counted,
    make_captures,
    wait_for_more,
)
from tests.polling import until
from tests.service_process import Service

pytestmark = pytest.mark.real_kafka


def make_two_ingesters(environment: dict[str, str], folder: Path) -> list[Service]:
    folders = [folder / name for name in ("first", "second")]
    for own_folder in folders:
        own_folder.mkdir()
    return [
        Service(
            "ingester",
            environment | {"INFERENCE_STORE_INGESTER_INSTANCE": own_folder.name},
            own_folder,
        )
        for own_folder in folders
    ]


async def test_ingesters_join_leave_and_are_killed(
    environment: dict[str, str],
    published: Published,
    engine: AsyncEngine,
    shared_bucket: str,
    tmp_path: Path,
) -> None:
    order = random.Random(3)
    services = make_two_ingesters(environment, tmp_path)
    try:
        for service in services:
            await asyncio.to_thread(service.wait_ready)
        load = asyncio.create_task(
            published.under_load(make_captures(range(50_000, 52_000)), pause=0.7)
        )
        for turn in range(6):
            service = services[turn % 2]
            await wait_for_more(engine, order.randint(50, 200), load)
            end = service.kill if turn in (2, 5) else service.stop
            await asyncio.to_thread(end)
            service.restart()
            await asyncio.to_thread(service.wait_ready)
        await load
        await check_ingested(engine, published.captures, shared_bucket, records=published.records)
    finally:
        for service in services:
            service.stop()


async def test_an_ingester_that_was_fenced_comes_back(
    environment: dict[str, str],
    published: Published,
    engine: AsyncEngine,
    shared_bucket: str,
    tmp_path: Path,
) -> None:
    services = make_two_ingesters(environment, tmp_path)
    frozen = services[0]
    try:
        for service in services:
            await asyncio.to_thread(service.wait_ready)
        some = make_captures(range(60_000, 61_200))
        await published.under_load(some[:300], pause=0.1)
        load = asyncio.create_task(published.under_load(some[300:900], pause=0.2))
        await wait_for_more(engine, 1, load)
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            await load
            # The other takes over everything once the session of the frozen one has ended.
            records = published.records
            await until(lambda: counted(engine), lambda result: result.total() == records)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        await published.under_load(some[900:], pause=0.2)
        await check_ingested(engine, published.captures, shared_bucket, records=published.records)
        for service in services:
            assert service.process.running, service.text[-4000:]
            await asyncio.to_thread(service.wait_ready)
    finally:
        for service in services:
            service.stop()


# The rows of a batch, and the books of its partitions, are written and locked; or Postgres waits
# for the rest of a COPY.
@pytest.mark.parametrize("failpoint", ["ingester.write.books:3", "ingester.write.copy:9"])
async def test_an_ingester_frozen_amid_a_transaction_does_not_block_others(
    failpoint: str,
    environment: dict[str, str],
    published: Published,
    engine: AsyncEngine,
    shared_bucket: str,
    tmp_path: Path,
) -> None:
    first, second = make_two_ingesters(environment, tmp_path)
    second.stop()
    first.stop()
    first.restart(FAILPOINT=f"{failpoint}:stop")
    try:
        await asyncio.to_thread(first.wait_ready)
        await published.under_load(make_captures(range(70_000, 70_600)), pause=0.05)

        process = psutil.Process(first.process.pid)

        async def is_frozen() -> bool:
            return process.status() == psutil.STATUS_STOPPED

        await until(is_frozen, bool)
        second.restart()
        records = published.records
        await until(lambda: counted(engine), lambda result: result.total() == records)
        first.process.send_signal(signal.SIGCONT)
        await check_ingested(engine, published.captures, shared_bucket, records=published.records)
        for service in (first, second):
            assert service.process.running, service.text[-4000:]
            await asyncio.to_thread(service.wait_ready)
    finally:
        first.process.send_signal(signal.SIGCONT)
        first.stop()
        second.stop()
