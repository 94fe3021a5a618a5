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


def list_troubles(service: Service) -> list[str]:
    """Return what its log says of waits for a server, but for a broker that a busy machine delays:
    such a wait is over with the next answer."""
    waits = [line for line in service.text.splitlines() if '"action": "waiting"' in line]
    return [line for line in waits if "does not answer within" not in line]


@pytest.fixture
async def start_ingester(
    service_environment: Any, topic: Any, tmp_path: Path
) -> AsyncIterator[StartIngester]:
    """Return a factory: `await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")`."""
    async with AsyncExitStack() as stack:

        async def start(*, partitions: int = 1, **changes: str) -> RunningIngester:
            name = topic(partitions)
            quick = {
                "INGESTER_PARKED_FIRST_SECONDS": "0.2",
                "INGESTER_RETRY_SECONDS": "0.2",
                "INGESTER_POLL_SECONDS": "0.1",
            }
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
