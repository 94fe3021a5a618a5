"""Two ingesters in one group: they come, go, are killed and are frozen while events keep coming."""

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.faults.traffic import Published, counted, make_captures
from tests.polling import until
from tests.service_process import Service

pytestmark = pytest.mark.real_kafka


@pytest.fixture
def ingesters(environment: dict[str, str], tmp_path: Path) -> Iterator[list[Service]]:
    folders = [tmp_path / name for name in ("first", "second")]
    for own_folder in folders:
        own_folder.mkdir()
    services = [
        Service(
            "ingester",
            environment | {"INFERENCE_STORE_INGESTER_INSTANCE": own_folder.name},
            own_folder,
        )
        for own_folder in folders
    ]
    yield services
    for service in services:
        service.stop()


async def test_ingesters_join_leave_and_die(published: Published, ingesters: list[Service]) -> None:
    order = random.Random(3)
    for service in ingesters:
        await asyncio.to_thread(service.wait_ready)
    load = asyncio.create_task(
        published.under_load(make_captures(range(50_000, 52_000)), pause=0.7)
    )
    for turn in range(6):
        service = ingesters[turn % 2]
        await published.wait_for_more(order.randint(50, 200), load)
        end = service.kill if turn in (2, 5) else service.stop
        await asyncio.to_thread(end)
        service.restart()
        await asyncio.to_thread(service.wait_ready)
    await load
    await published.check_ingested()


async def test_a_fenced_ingester_comes_back(published: Published, ingesters: list[Service]) -> None:
    frozen = ingesters[0]
    for service in ingesters:
        await asyncio.to_thread(service.wait_ready)
    some = make_captures(range(60_000, 61_200))
    await published.under_load(some[:300], pause=0.1)
    load = asyncio.create_task(published.under_load(some[300:900], pause=0.2))
    await published.wait_for_more(1, load)
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        await load
        # The other takes over everything once the session of the frozen one has ended.
        records = published.records
        await until(lambda: counted(published.engine), lambda result: result.total() == records)
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    await published.under_load(some[900:], pause=0.2)
    await published.check_ingested()
    for service in ingesters:
        assert service.process.running, service.text[-4000:]
        await asyncio.to_thread(service.wait_ready)


# The rows of a batch, and the books of its partitions, are written and locked; or Postgres waits
# for the rest of a COPY.
@pytest.mark.parametrize("failpoint", ["ingester.write.books:3", "ingester.write.copy:9"])
async def test_an_ingester_frozen_amid_a_transaction_does_not_block_others(
    failpoint: str, published: Published, ingesters: list[Service]
) -> None:
    first, second = ingesters
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
        await until(lambda: counted(published.engine), lambda result: result.total() == records)
        first.process.send_signal(signal.SIGCONT)
        await published.check_ingested()
        for service in (first, second):
            assert service.process.running, service.text[-4000:]
            await asyncio.to_thread(service.wait_ready)
    finally:
        first.process.send_signal(signal.SIGCONT)
