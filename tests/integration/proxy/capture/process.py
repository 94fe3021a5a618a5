"""A process that captures without end, and the capture process below it: both to be killed."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.polling import until
from tests.warm.process import start_module


class Capturing:
    """The process of `capturing.py`."""

    def __init__(
        self, environment: dict[str, str], folder: Path, name: str, *, most: float = math.inf
    ) -> None:
        """`most`: exchanges that it captures itself."""
        self.log = folder / f"{name}.log"
        module = "tests.integration.proxy.capture.capturing"
        self.process = start_module(module, str(most), log=self.log, environment=environment)

    async def producer(self) -> str:
        """Its producer's id: the first line that is no log."""

        async def ask() -> str | None:
            text = await asyncio.to_thread(self.log.read_text)
            lines = [line for line in text.splitlines() if len(line) == 36]
            return lines[0] if lines else None

        found = await until(ask, lambda name: name is not None)
        assert found is not None
        return found

    def kill(self) -> None:
        self.process.kill()

    def kill_serving(self) -> Sequence[psutil.Process]:
        """kill -9 of the process that serves alone; those below it, which go on."""
        below = [psutil.Process(pid) for pid in self.process.pids() if pid != self.process.pid]
        psutil.Process(self.process.pid).kill()
        self.process.wait(60)
        return below

    async def kill_capture(self) -> int:
        """kill -9 of the capture process alone, once there is one; which it was."""

        async def ask() -> list[int]:
            return [pid for pid in self.process.pids() if pid != self.process.pid]

        (pid,) = await until(ask, lambda pids: len(pids) == 1)
        psutil.Process(pid).kill()
        return pid
