"""A running ingester and a producer on its topic."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.producer import Producer
from tests.servers.fixtures import unique
from tests.service_process import Service

RunningIngester = tuple[Service, Producer]
StartIngester = Callable[..., Awaitable[RunningIngester]]


@pytest.fixture
async def start_ingester(
    service_environment: Any, topic: Any, tmp_path: Path
) -> AsyncIterator[StartIngester]:
    """A factory: `await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")`."""
    async with AsyncExitStack() as opened:

        async def start(*, partitions: int = 1, **changes: str) -> RunningIngester:
            name = topic(partitions)
            quick = {
                "INGESTER_PARKED_FIRST_SECONDS": "0.2",
                "INGESTER_RETRY_SECONDS": "0.2",
                "INGESTER_POLL_SECONDS": "0.1",
            }
            # killed and started again it has its partitions at once
            quick["INGESTER_INSTANCE"] = unique("ingester")
            environment = service_environment(KAFKA_TOPIC=name, **(quick | changes))
            service = Service("ingester", environment, tmp_path)
            opened.callback(service.stop)
            await asyncio.to_thread(service.wait_ready)
            return service, await opened.enter_async_context(Producer(environment, name))

        yield start


@pytest.fixture
async def running(start_ingester: StartIngester) -> RunningIngester:
    """An ingester with the usual settings."""
    return await start_ingester()
