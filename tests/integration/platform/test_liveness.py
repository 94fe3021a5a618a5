"""A service with a stalled loop is not live; one that waits for a server is live."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.ingester import run as ingester
from inference_store.platform.admin import Heartbeat
from inference_store.platform.metrics import SHOWN
from inference_store.platform.settings import IngesterSettings, RetentionSettings
from inference_store.retention import run as retention
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess


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


def make_settings_of(kind: type[Any], environment: dict[str, str]) -> Any:
    prefix = "INFERENCE_STORE_"
    values = {name.removeprefix(prefix).lower(): v for name, v in environment.items()}
    return kind.model_validate({n: v for n, v in values.items() if n in kind.model_fields})


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
    """Lock a table, so that everybody who needs it waits."""
    async with engine.begin() as connection:
        await connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield


async def test_ingester_with_a_stalled_writer_is_not_live(
    service_environment: MakeEnvironment, topic: Callable[..., str], engine: AsyncEngine
) -> None:
    port, name = free_port(), topic(1)
    environment = service_environment(
        KAFKA_TOPIC=name, INGESTER_ADMIN_PORT=str(port), INGESTER_POLL_SECONDS="0.1"
    )
    settings, stop = make_settings_of(IngesterSettings, environment), asyncio.Event()
    async with (
        run_in_background(ingester.run(settings, stop, live_seconds=4.0), stop),
        Producer(environment, name) as producer,
    ):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        async with lock_table(engine, "inference"):
            # The reader continues to poll an empty topic: that alone must not keep it alive.
            await producer.produce(capture(1))
            await until(lambda: fetch_live_status(port), lambda status: status == 503)
        await until(lambda: fetch_live_status(port), lambda status: status == 200)


async def count_waits() -> float:
    """Count how often an ingester of this process has begun to wait for Postgres."""
    labels = {"server": "postgres"}
    return SHOWN["ingester"].get_sample_value("inference_store_ingester_trouble_total", labels) or 0


async def fetch_heartbeat_age(port: int) -> float:
    """Return how many seconds ago the slowest loop has turned."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        page = await answer.text()
    [age] = re.findall(r"^inference_store_heartbeat_age_seconds (\S+)$", page, re.MULTILINE)
    return float(age)


async def test_ingester_that_waits_for_a_server_is_live(
    service_environment: MakeEnvironment,
) -> None:
    """Its loop turns with each try."""
    port = free_port()
    environment = service_environment(
        POSTGRES_DSN=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing",
        INGESTER_ADMIN_PORT=str(port),
        INGESTER_RETRY_SECONDS="0.1",
    )
    settings, stop = make_settings_of(IngesterSettings, environment), asyncio.Event()
    async with run_in_background(ingester.run(settings, stop), stop):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        began, before = time.monotonic(), await count_waits()
        await until(count_waits, lambda count: count >= before + 4)
        age = await fetch_heartbeat_age(port)
        assert age < time.monotonic() - began


async def test_stalled_retention_service_is_not_live(
    service_environment: MakeEnvironment, engine: AsyncEngine
) -> None:
    port = free_port()
    environment = service_environment(RETENTION_ADMIN_PORT=str(port))
    settings, stop = make_settings_of(RetentionSettings, environment), asyncio.Event()
    async with run_in_background(retention.run(settings, stop, live_seconds=4.0), stop):
        await until(lambda: fetch_live_status(port), lambda status: status == 200)
        async with lock_table(engine, "erasure"):
            await until(lambda: fetch_live_status(port), lambda status: status == 503)
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


@pytest.mark.parametrize(("rests", "is_old"), [(False, True), (True, False)])
def test_resting_loop_need_not_beat(rests: bool, is_old: bool) -> None:
    heartbeat = Heartbeat()
    heartbeat.beat("write")
    heartbeat._last["write"] -= 2 * heartbeat.limit_seconds
    if rests:
        heartbeat.rest("write")
    heartbeat.beat()
    assert (heartbeat.age_seconds > heartbeat.limit_seconds) is is_old
