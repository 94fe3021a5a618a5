"""A service with a stalled loop is not live; one that waits for a server is live."""

import asyncio
import contextlib
import http.client
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
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
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until
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
    service_environment: MakeEnvironment, topic: MakeTopic, engine: AsyncEngine, clock: StoppedClock
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


# Two thousand silent sockets to a service that may open 1,024 files.

SOCKETS = 2000
OTHER = "127.0.0.2"


@pytest.fixture
def raise_file_limit() -> Iterator[None]:
    """Raise the limit of open files, so that this process can hold all sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def start_limited_service(
    name: str, environment: Mapping[str, str], folder: Path
) -> Iterator[LeashedProcess]:
    command = f"ulimit -n 1024; exec {sys.executable} -m inference_store.cli.main {name}"
    log = folder / f"{name}.log"
    process = LeashedProcess(["sh", "-c", command], log=log, environment=dict(environment))
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def open_silent_sockets(port: int, addresses: list[str]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in range(SOCKETS):
            socket_ = stack.enter_context(socket.socket())
            socket_.bind((addresses[number % len(addresses)], 0))
            socket_.setblocking(False)
            socket_.connect_ex(("127.0.0.1", port))
            sockets.append(socket_)
        yield sockets


def send_request(port: int, path: str) -> tuple[int, Any]:
    """Send a request from another address; return status and body, status 0 without an answer."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(OTHER, 0))
    with contextlib.closing(asking):
        try:
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, None


@pytest.mark.long
@pytest.mark.parametrize("name", ["api", "proxy"])
@pytest.mark.usefixtures("raise_file_limit")
def test_silent_sockets_do_not_take_a_service_down(
    name: str, service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
) -> None:
    port, admin, upstream = free_port(), free_port(), free_port()
    upper = name.upper()
    environment = service_environment(
        KAFKA_TOPIC=topic(1),
        **{f"{upper}_PORT": str(port), f"{upper}_ADMIN_PORT": str(admin)},
        **({"PROXY_UPSTREAM": f"http://127.0.0.1:{upstream}"} if name == "proxy" else {}),
    )
    # The proxy has no model server: that it reports this is an answer.
    path, expected = ("/v1/models", 200) if name == "api" else ("/v2/models/m/ready", 502)

    def wait_for(port: int, path: str, status: int) -> Any:
        answers: list[tuple[int, Any]] = []

        def answers_so() -> bool:
            answers.append(send_request(port, path))
            return answers[-1][0] == status

        wait_until(answers_so, seconds=120, what=f"{status} of {path}")
        return answers[-1][1]

    with start_limited_service(name, environment, tmp_path):
        wait_for(admin, "/health/ready", 200)
        with open_silent_sockets(port, ["127.0.0.1"]):
            assert send_request(port, path)[0] == expected
            assert send_request(admin, "/health/ready")[0] == 200
        with open_silent_sockets(admin, ["127.0.0.1"]):
            assert send_request(admin, "/health/ready")[0] == 200
        with open_silent_sockets(port, ["127.0.0.3", "127.0.0.4", "127.0.0.5"]):
            full = wait_for(admin, "/health/ready", 503)
            assert "connections are taken" in full["parts"]["connections"]
            # The accepted sockets send nothing in time, and are closed.
            wait_for(port, path, expected)
        wait_for(admin, "/health/ready", 200)
