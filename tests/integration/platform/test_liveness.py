"""A service with a stalled loop is not live; one that waits for a server is live."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.ingester import run as ingester
from inference_store.platform import serving
from inference_store.platform.metrics import SHOWN
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings, RetentionSettings
from inference_store.retention import run as retention
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.settings import read_settings
from tests.stopped_clock import StoppedClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock by which loops of this process are stuck."""
    stopped = StoppedClock()
    monkeypatch.setattr(serving, "time", stopped)
    return stopped


async def fetch_live_status(port: int) -> int:
    """Return the status of /health/live, 0 if there is no answer."""
    timeout = aiohttp.ClientTimeout(total=2)
    with suppress(aiohttp.ClientError, TimeoutError):
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://127.0.0.1:{port}/health/live") as answer,
        ):
            return answer.status
    return 0


async def wait_until_stuck(port: int, clock: StoppedClock) -> None:
    """Step the clock until the service is not live. Loops that turn do so between two steps."""

    async def step() -> int:
        clock.now += 1
        return await fetch_live_status(port)

    await until(step, lambda status: status == 503)


@asynccontextmanager
async def run_in_background(work: Any, stop: asyncio.Event) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        stop.set()
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def lock_table(engine: AsyncEngine, table: str) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield


async def test_ingester_with_a_stalled_writer_is_not_live(
    service_environment: MakeEnvironment,
    topic: Callable[..., str],
    engine: AsyncEngine,
    clock: StoppedClock,
) -> None:
    port, name = free_port(), topic(1)
    environment = service_environment(KAFKA_TOPIC=name, INGESTER_ADMIN_PORT=str(port))
    settings, stop = read_settings(IngesterSettings, environment), asyncio.Event()
    async with (
        run_in_background(ingester.run(settings, stop), stop),
        Producer(environment, name) as producer,
    ):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        async with lock_table(engine, "inference"):
            # The reader continues to poll an empty topic: that alone must not keep it alive.
            await producer.produce(capture(1))
            await wait_until_stuck(port, clock)
        await until(lambda: fetch_live_status(port), lambda status: status == 200)


async def count_waits() -> float:
    """Count how often an ingester of this process has begun to wait for Postgres."""
    labels = {"server": "postgres"}
    return SHOWN["ingester"].get_sample_value("inference_store_ingester_trouble_total", labels) or 0


async def wait_for_a_try() -> None:
    before = await count_waits()
    await until(count_waits, lambda count: count > before)


async def test_ingester_that_waits_for_a_server_is_live(
    service_environment: MakeEnvironment, clock: StoppedClock
) -> None:
    """Its loop turns with each try."""
    port = free_port()
    environment = service_environment(
        POSTGRES_DSN=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing",
        INGESTER_ADMIN_PORT=str(port),
    )
    settings, stop = read_settings(IngesterSettings, environment), asyncio.Event()
    async with run_in_background(ingester.run(settings, stop), stop):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        for _ in range(4):
            await wait_for_a_try()
            clock.now += 50
            status = await until(lambda: fetch_live_status(port), lambda status: status != 0)
            assert status == 200


async def test_stalled_retention_service_is_not_live(
    service_environment: MakeEnvironment, engine: AsyncEngine, clock: StoppedClock
) -> None:
    port = free_port()
    environment = service_environment(RETENTION_ADMIN_PORT=str(port))
    settings, stop = read_settings(RetentionSettings, environment), asyncio.Event()
    async with run_in_background(retention.run(settings, stop), stop):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        async with lock_table(engine, "erasure"):
            await wait_until_stuck(port, clock)
        await until(lambda: fetch_live_status(port), lambda status: status == 200)


_API = """
import asyncio, signal
from inference_store.api.run import serve
from inference_store.platform.settings import ApiSettings

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, signal.sigwait, [signal.SIGUSR2])
    await serve(ApiSettings())

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
asyncio.run(main())
"""


async def test_api_with_a_blocked_loop_is_not_live(
    service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """The blocked loop is the one that answers: no answer counts as not live."""
    port = free_port()
    environment = service_environment(API_ADMIN_PORT=str(port), API_PORT="0")
    command = [sys.executable, "-c", _API]
    process = LeashedProcess(command, log=tmp_path / "api.log", environment=environment)
    try:
        await until(lambda: fetch_live_status(port), lambda status: status == 200, seconds=180)
        process.send_signal(signal.SIGUSR1)
        await until(lambda: fetch_live_status(port), lambda status: status == 0)
        process.send_signal(signal.SIGUSR2)
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
    finally:
        await asyncio.to_thread(process.stop)


def test_resting_loop_need_not_beat(clock: StoppedClock) -> None:
    heartbeat = Heartbeat()
    heartbeat.beat("write")
    clock.now += 2 * heartbeat.limit_seconds
    heartbeat.beat()
    assert heartbeat.age_seconds == 2 * heartbeat.limit_seconds
    heartbeat.rest("write")
    assert heartbeat.age_seconds == 0
