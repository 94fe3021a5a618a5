"""How the capture process is started, and gives way to the serving one."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.page import Cell
from inference_store.proxy.capture.process import CaptureProcess, give_way
from tests.polling import until
from tests.settings import make_settings


@pytest.fixture
def asleep() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


@pytest.mark.parametrize(("priority", "nicer"), [("normal", 0), ("low", 10)])
def test_it_is_nicer_than_we_are(priority: str, nicer: int, asleep: int) -> None:
    give_way(asleep, priority)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, asleep) == min(19, ours + nicer)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no idle priority")
def test_it_takes_what_nobody_else_wants(asleep: int) -> None:
    give_way(asleep, "idle")
    assert os.sched_getscheduler(asleep) == os.SCHED_IDLE


def test_one_that_has_ended_gives_way_to_nobody() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for priority in ("idle", "low"):
        give_way(process.pid, priority)


class Silent:
    """A process that reads until the socket ends, and says nothing."""

    def __init__(self, connection: socket.socket, page: int = -1, lock: int = -1) -> None:
        del page, lock
        self.came = b""
        self.was_killed = False
        self._socket = connection.dup()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._socket:
            while some := self._socket.recv(1 << 16):
                self.came += some

    def wait(self) -> int:
        self._thread.join()
        return 0

    def kill(self) -> None:
        self.was_killed = True


class Trial:
    """A capture process of which something fails the first time."""

    def __init__(self, *, start: bool = False, first: bool = False) -> None:
        self.started: list[Silent] = []
        self.gone: list[int] = []
        """Bytes handed over, at each end."""
        self._fail_start, self._fail_first = start, first
        self.process = CaptureProcess(self._start, self._first, self.gone.append)

    def _start(self, connection: socket.socket) -> Silent:
        if self._fail_start:
            self._fail_start = False
            raise ValueError("a defect")
        self.started.append(Silent(connection))
        return self.started[-1]

    def _first(self, handed: int) -> list[bytes]:
        if self._fail_first:
            self._fail_first = False
            raise ValueError("a defect")
        return [b"hello %d " % handed]

    async def why(self) -> str | None:
        return self.process.why_away

    async def came(self) -> bytes:
        return self.started[-1].came if self.started else b""


@pytest.mark.parametrize("at", ["start", "first"])
async def test_whatever_fails_at_its_start_is_said_and_tried_again(at: str) -> None:
    trial = Trial(**{at: True})
    trial.process.begin()
    trial.process.hand([b"one"], 3)
    why = await until(trial.why, bool)
    assert why == "the capture process cannot be started: ValueError: a defect"
    assert await until(trial.came, lambda came: b"one" in came) == b"hello 0 one"
    assert await trial.why() is None
    killed = [each.was_killed for each in trial.started]
    assert killed == ([False] if at == "start" else [True, False])
    assert trial.gone == [0]
    await trial.process.end(asyncio.get_running_loop().time() + 5)
    assert trial.gone == [0, 3]
    assert await trial.why() is None


async def test_one_that_never_begins_is_said_to_be_away() -> None:
    settings = make_settings(ProxySettings, proxy_upstream="http://up")
    started: list[Silent] = []

    def start(connection: socket.socket, page: int, lock: int) -> Silent:
        started.append(Silent(connection, page, lock))
        return started[-1]

    captures = Captures(settings, start=start)
    await captures.start()

    async def age() -> float:
        return captures._process.age

    await until(age, lambda seconds: seconds > 0)
    why_away = captures.waits["capture"]
    assert await why_away() is None
    assert captures._process._began is not None
    captures._process._began -= 60
    assert "does not begin" in str(await why_away())
    captures._page.cells[Cell.TELLING] = 2  # as when it has said something
    assert await why_away() is None
    await captures.stop(5)
    assert len(started) == 1
