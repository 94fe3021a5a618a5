"""The capture process starts, again if it has to, and its failures are shown."""

import asyncio
import os
import random
import socket
import threading

import pytest

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.counts import Budget, CounterId, Counts, SharedCounters
from inference_store.proxy.capture.process import CaptureProcess
from tests.polling import until
from tests.settings import make_settings


class Silent:
    """A process that reads until the socket ends, and says nothing."""

    pid = 2**22 + 1
    """Above any pid."""

    def __init__(self, connection: socket.socket, counters: int = -1, lock: int = -1) -> None:
        del counters, lock
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

    def _first(self, handed: int) -> bytes:
        if self._fail_first:
            self._fail_first = False
            raise ValueError("a defect")
        return b"hello %d " % handed

    async def why(self) -> str | None:
        return self.process.find_failure

    async def came(self) -> bytes:
        return self.started[-1].came if self.started else b""


@pytest.mark.parametrize("at", ["start", "first"])
async def test_reports_a_failed_start_and_retries(at: str) -> None:
    trial = Trial(**{at: True})
    trial.process.begin()
    trial.process.hand(b"one", 3)
    why = await until(trial.why, bool)
    assert why == "the capture process cannot be started: ValueError: a defect"
    assert await until(trial.came, lambda came: b"one" in came) == b"hello 0 one"
    assert await trial.why() is None
    killed = [process.was_killed for process in trial.started]
    assert killed == ([False] if at == "start" else [True, False])
    assert trial.gone == [0]
    await trial.process.end(asyncio.get_running_loop().time() + 300)
    assert trial.gone == [0, 3]
    assert await trial.why() is None


async def test_reports_a_process_that_never_begins_as_away() -> None:
    settings = make_settings(ProxySettings, proxy_upstream="http://up")
    started: list[Silent] = []

    def start(connection: socket.socket, counters: int, lock: int) -> Silent:
        started.append(Silent(connection, counters, lock))
        return started[-1]

    captures = Captures(settings, start=start)
    await captures.start()

    async def age() -> float:
        return captures._process.age

    await until(age, lambda seconds: seconds > 0)
    assert await captures.find_start_error() == "the capture process is starting"
    find_failure = captures.waits["capture"]
    assert await find_failure() is None
    assert captures._process._began is not None
    captures._process._began -= 60
    assert "does not begin" in str(await find_failure())
    captures._counters.values[CounterId.WRITING_STATUS] = 2  # as when it has said something
    assert await find_failure() is None
    assert await captures.find_start_error() is None
    captures._counters.values[CounterId.WRITING_STATUS] = 0  # another one begins: we stay ready
    assert await captures.find_start_error() is None
    await captures.stop(300)
    assert len(started) == 1


# The books of a producer whose processes are killed, whenever that is.


def make_counts(counters: SharedCounters) -> Counts:
    return Counts("p", counters.values)


@pytest.fixture
def counters() -> SharedCounters:
    return SharedCounters.new()


@pytest.mark.parametrize("seed", range(10))
def test_whenever_a_capture_process_is_killed_the_books_close_and_no_number_is_given_twice(
    seed: int, counters: SharedCounters
) -> None:
    chance = random.Random(seed)
    serving, capture = make_counts(counters), make_counts(SharedCounters(os.dup(counters.file)))
    handed = unread = spooled = 0
    in_memory = 0
    numbers: list[int] = []
    for _ in range(2000):
        match chance.randrange(8):
            case 0 | 1:
                serving.see()
                handed, unread = handed + 1, unread + 1
            case 2:
                serving.refuse("no_budget")
            case 3 | 4 if unread:
                unread -= 1
                capture.receive(1)
                if chance.random() < 0.2:
                    capture.sample_out()
                else:
                    numbers.append(capture.next_sequence())
                    in_memory += 1
            case 5 if in_memory:
                in_memory -= 1
                if chance.random() < 0.5:
                    capture.publish(1, 1)
                else:
                    capture.drop("refused")
            case 6 if in_memory:
                in_memory -= 1
                spooled += 1
                capture.spool(1, 0)
            case 7 if chance.random() < 0.1:  # killed
                capture = make_counts(SharedCounters(os.dup(counters.file)))
                lost = unread + in_memory
                before = serving.dropped.get("process_ended", 0)
                capture.go_on(handed)
                assert serving.dropped.get("process_ended", 0) == before + lost
                unread = in_memory = 0
                assert serving.queued == spooled
        report = capture.report()
        assert report.closes
        assert report.queued == unread + in_memory + spooled
    assert numbers == sorted(set(numbers))
    # never reported: the serving process has died
    capture.lose_unread()
    assert capture.queued == in_memory + spooled
    capture.give_up()
    report = capture.report(final=True)
    assert report.closes
    assert report.dropped.get("left", 0) == in_memory
    assert report.highest_sequence == report.seen - report.sampled_out


def test_both_processes_share_one_budget(counters: SharedCounters) -> None:
    serving, capture = (
        Budget(counters.values, 100),
        Budget(SharedCounters(os.dup(counters.file)).values, 100),
    )
    assert serving.take(60)
    assert not serving.take(41)
    capture.free(-30)  # it became larger
    assert (serving.held, capture.held) == (90, 90)
    capture.free(90)
    assert serving.take(100)
    serving.give_back(100)
    assert capture.held == 0


def test_counters_are_read_whole_or_not_at_all(counters: SharedCounters) -> None:
    other = SharedCounters(os.dup(counters.file))
    assert other.read_status() is None
    counters.write_status(b"a text")
    assert other.read_status() == b"a text"
    counters.write_status(bytes(10**6))
    assert other.read_status() == b"a text"
    counters.values[CounterId.WRITING_STATUS] += 1  # killed while it was writing
    assert other.read_status() is None
    counters.write_status(b"another")
    assert other.read_status() == b"another"
