"""How the capture process gives way to the serving one."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from inference_store.proxy.capture.process import give_way


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
