"""A process forked from the warm one starts, prints, ends and is stopped like a cold one."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until
from tests.warm.process import WarmProcess, find_warm, running_warm, start_module

_WAITS = "tests.integration.warm.waiting"


@pytest.fixture(scope="module")
def warm_process() -> Iterator[str]:
    with running_warm() as path:
        yield path


def start(warm_process: str, folder: Path, *arguments: str) -> WarmProcess:
    log = folder / "log"
    environment = {**os.environ, "GIVEN": "to it"}
    return WarmProcess(
        _WAITS,
        arguments,
        warm=warm_process,
        output=log,
        error=log,
        environment=environment,
        folder=folder,
    )


def test_has_exit_code_and_output(warm_process: str, tmp_path: Path) -> None:
    process = start(warm_process, tmp_path, "end", "3")
    assert process.wait(60) == 3
    assert not process.running
    assert process.last_lines().split() == ["to", "it", str(tmp_path)]


def test_kills_or_stops_a_process(warm_process: str, tmp_path: Path) -> None:
    assert start(warm_process, tmp_path, "loop").kill() == 128 + signal.SIGKILL
    assert start(warm_process, tmp_path, "loop").stop() == 128 + signal.SIGTERM


def test_unreferenced_process_ends(warm_process: str, tmp_path: Path) -> None:
    pid = start(warm_process, tmp_path, "loop").pid
    gc.collect()
    wait_until(lambda: not psutil.pid_exists(pid), seconds=60, what="it ends")


def test_all_processes_end_with_the_warm_one(tmp_path: Path) -> None:
    with running_warm() as path:
        process = start(path, tmp_path, "loop")
    wait_until(lambda: not psutil.pid_exists(process.pid), seconds=60, what="it ends")


def test_warm_process_never_runs_other_code(tmp_path: Path) -> None:
    """The upgrade test, for example, runs the code of the version before."""
    other = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "GIVEN": "to it"}
    assert find_warm(other) is None
    process = start_module(_WAITS, "end", "4", log=tmp_path / "log", environment=other)
    assert isinstance(process, LeashedProcess)
    assert process.wait(60) == 4
