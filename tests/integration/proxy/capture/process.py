"""A process that captures without end, and its child, the capture process: both to be killed."""

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from inference_store.inference.producer_reports import ProducerReport
from tests.polling import until
from tests.servers.kafka import Kafka
from tests.warm.process import start_module

from .servers import PublishedEvent, list_folder, read_events, read_reports


class CapturingProcess:
    """The process of `capturing.py`."""

    def __init__(
        self, environment: dict[str, str], log: Path, *, most: float = math.inf, waiting: int = 500
    ) -> None:
        """`most`: exchanges that it captures itself; `waiting`: those of them that wait at once."""
        self.log = log
        module = "tests.integration.proxy.capture.capturing"
        numbers = str(most), str(waiting)
        self.process = start_module(module, *numbers, log=log, environment=environment)
        self.kill = self.process.kill

    async def find_producer(self) -> str:
        """Return the id of its producer: the first line that is not a log."""

        async def ask() -> list[str]:
            text = await asyncio.to_thread(self.log.read_text)
            return [line for line in text.splitlines() if len(line) == 36]

        return (await until(ask, bool))[0]

    def stop(self) -> None:
        self.process.stop(seconds=300)

    def kill_serving(self) -> Sequence[psutil.Process]:
        """Kill (-9) only the process that serves; return its children, which continue."""
        below = [psutil.Process(pid) for pid in self.process.pids() if pid != self.process.pid]
        psutil.Process(self.process.pid).kill()
        self.process.wait(300)
        return below

    async def _list_capture(self) -> list[int]:
        return [pid for pid in self.process.pids() if pid != self.process.pid]

    async def kill_capture(self) -> int:
        """Kill (-9) only the capture process, once there is one; return its pid."""
        (pid,) = await until(self._list_capture, lambda pids: len(pids) == 1)
        psutil.Process(pid).kill()
        await until(self._list_capture, lambda pids: pid not in pids)
        return pid

    async def freeze_capture(self) -> None:
        """Stop (SIGSTOP) only the capture process, once there is one."""
        (pid,) = await until(self._list_capture, lambda pids: len(pids) == 1)
        psutil.Process(pid).suspend()


@contextmanager
def busy_processors() -> Iterator[None]:
    """Keep every processor of the machine busy with two other processes."""
    command = [sys.executable, "-c", "while True: pass"]
    burning = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


class Capturing:
    """Starts such processes, and reads what came of them."""

    def __init__(self, kafka: Kafka, environment: dict[str, str], folder: Path) -> None:
        self._kafka, self._environment, self._folder = kafka, environment, folder
        self.spool = folder / "spool"
        self.started: list[CapturingProcess] = []

    def start(
        self, *, most: float = math.inf, waiting: int = 500, **changes: str
    ) -> CapturingProcess:
        """Start one; `changes`: settings without the prefix."""
        settings = {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        log = self._folder / f"{len(self.started)}.log"
        process = CapturingProcess(self._environment | settings, log, most=most, waiting=waiting)
        self.started.append(process)
        return process

    async def read_events(self, producer: str) -> list[PublishedEvent]:
        events = await read_events(self._kafka, self._environment["INFERENCE_STORE_KAFKA_TOPIC"])
        return [event for event in events if event.producer == producer]

    async def wait_for_more_events(self, producer: str) -> None:
        async def count() -> int:
            return len(await self.read_events(producer))

        least = await count() + 20
        await until(count, lambda number: number > least)

    async def read_reports(self, producer: str) -> list[ProducerReport]:
        topic = self._environment["INFERENCE_STORE_KAFKA_REPORTS_TOPIC"]
        reports = await read_reports(self._kafka, topic)
        return [report for report in reports if report.producer == producer]

    async def wait_for_final_report(self, producer: str) -> ProducerReport:
        """Wait for the final report about a producer; its books close."""

        async def ask() -> list[ProducerReport]:
            return [report for report in await self.read_reports(producer) if report.final]

        report = (await until(ask, bool))[-1]
        assert report.closes
        return report

    async def list_spool(self, producer: str = "") -> Sequence[str]:
        """Return the names in the spool, or in the folder of a producer."""
        return await list_folder(self.spool / producer)

    async def find_spooled(self, producer: str) -> set[int]:
        """Return the numbers of the whole files in the spool of a producer."""
        return {int(name) for name in await self.list_spool(producer) if name.isdigit()}
