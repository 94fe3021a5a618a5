"""A process that captures without end, and its child, the capture process: both to be killed."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.polling import until
from tests.warm.process import start_module


class CapturingProcess:
    """The process of `capturing.py`."""

    def __init__(
        self,
        environment: dict[str, str],
        folder: Path,
        name: str,
        *,
        most: float = math.inf,
        waiting: int = 500,
    ) -> None:
        """`most`: exchanges that it captures itself; `waiting`: those of them that wait at once."""
        self.log = folder / f"{name}.log"
        module = "tests.integration.proxy.capture.capturing"
        numbers = str(most), str(waiting)
        self.process = start_module(module, *numbers, log=self.log, environment=environment)

    async def find_producer(self) -> str:
        """Return the id of its producer: the first line that is not a log."""

        async def ask() -> str | None:
            text = await asyncio.to_thread(self.log.read_text)
            lines = [line for line in text.splitlines() if len(line) == 36]
            return lines[0] if lines else None

        producer = await until(ask, lambda name: name is not None)
        assert producer is not None
        return producer

    def stop(self) -> None:
        """Let it drain, and end."""
        self.process.stop(seconds=180)

    def kill(self) -> None:
        self.process.kill()

    def kill_serving(self) -> Sequence[psutil.Process]:
        """Kill (-9) only the process that serves; return its children, which continue."""
        below = [psutil.Process(pid) for pid in self.process.pids() if pid != self.process.pid]
        psutil.Process(self.process.pid).kill()
        self.process.wait(60)
        return below

    async def kill_capture(self) -> int:
        """Kill (-9) only the capture process, once there is one; return its pid."""

        async def ask() -> list[int]:
            return [pid for pid in self.process.pids() if pid != self.process.pid]

        (pid,) = await until(ask, lambda pids: len(pids) == 1)
        psutil.Process(pid).kill()
        await until(ask, lambda pids: pid not in pids)
        return pid
