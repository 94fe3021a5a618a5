"""A running ingester and a producer on its topic."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import Erasure
from inference_store.index.accounting import Outcome
from inference_store.index.tables import unsettled_event
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import finish
from tests.e2e.faults.traffic import counted
from tests.integration.retention.stored import make_leader
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.service_process import Service
from tests.transactions import execute

RunningIngester = tuple[Service, Producer]
StartIngester = Callable[..., Awaitable[RunningIngester]]
MANY = [capture(number) for number in range(20)]


def list_troubles(service: Service) -> list[str]:
    """Return what its log says of waits for a server, but for a broker that a busy machine delays:
    such a wait is over with the next answer."""
    waits = [line for line in service.text.splitlines() if '"action": "waiting"' in line]
    return [line for line in waits if "does not answer within" not in line]


async def wait_for_counts(engine: AsyncEngine, **counts: int) -> None:
    """Wait until the books have exactly these outcomes: `stored=2, dead=1`."""
    expected = Counter({Outcome[name.upper()]: count for name, count in counts.items() if count})
    await until(lambda: counted(engine), lambda current: +current == expected)


async def expire_parked(engine: AsyncEngine) -> None:
    """Let events have been parked for longer than they may, and be due."""
    long_ago = func.now() - timedelta(days=2)
    values = {"created_at": long_ago, "next_attempt_at": long_ago}
    parked = unsettled_event.update().where(unsettled_event.c.state == "parked")
    await execute(engine, parked.values(values))


async def read_health(service: Service, name: str) -> str:
    return str((await asyncio.to_thread(service.health))["parts"][name])


async def wait_until_ready(service: Service, name: str) -> None:
    await until(lambda: read_health(service, name), lambda health: health == "ready")


@pytest.fixture
def blobs(database: str, minio_server: S3, bucket: str) -> Iterator[Blobs]:
    """Open the bucket with the rights of the servers."""
    values = {"postgres_dsn": database, **minio_server.settings, "s3_bucket": bucket}
    with Blobs(RetentionSettings.model_validate(values)) as opened:
        yield opened


async def erase(engine: AsyncEngine, blobs: Blobs, *erasures: Erasure) -> None:
    """Carry out erasures as the retention service does."""
    leader = make_leader(engine, blobs)
    for erasure in erasures:
        assert await finish(leader, erasure) == "deleted"


@pytest.fixture
async def start_ingester(
    service_environment: Any, topic: Any, tmp_path: Path
) -> AsyncIterator[StartIngester]:
    """Return a factory: `await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")`."""
    async with AsyncExitStack() as stack:

        async def start(*, partitions: int = 1, **changes: str) -> RunningIngester:
            name = topic(partitions)
            quick = {}
            # After a kill and a restart it has its partitions at once.
            quick["INGESTER_INSTANCE"] = unique("ingester")
            environment = service_environment(KAFKA_TOPIC=name, **(quick | changes))
            service = Service("ingester", environment, tmp_path)
            stack.callback(service.stop)
            await asyncio.to_thread(service.wait_ready)
            return service, await stack.enter_async_context(Producer(environment, name))

        yield start


@pytest.fixture
async def running(start_ingester: StartIngester) -> RunningIngester:
    """Start an ingester with the usual settings."""
    return await start_ingester()


@pytest.fixture
def producer(running: RunningIngester) -> Producer:
    """The producer of an ingester with the usual settings."""
    return running[1]
