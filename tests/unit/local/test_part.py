"""A part is ready, ends in good order, is killed when it does not, and does not outlive us."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inference_store.local.errors import PartEnded, PartNotReady
from inference_store.local.folder import LocalFolder
from inference_store.local.leftover_processes import end_leftovers
from inference_store.local.part import Part, RunningPart
from tests.servers.waiting import wait_until

SLEEPS = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('deaf', flush=True); time.sleep(600)"
)


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    local_folder = LocalFolder(tmp_path / "store")
    local_folder.make()
    return local_folder


def start(folder: LocalFolder, code: str, *, stop_seconds: float = 300.0) -> RunningPart:
    command = (sys.executable, "-c", code)
    part = Part("one", command, os.environ, folder.path, stop_seconds=stop_seconds)
    return RunningPart(part, folder)


def is_gone(pid: int) -> bool:
    """Check that the process is gone, or dead and not collected (containers without an init)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def list_pid_files(folder: LocalFolder) -> list[str]:
    return [file.name for file in folder.run.iterdir()]


def test_reports_a_part_that_ends_with_the_end_of_its_log(folder: LocalFolder) -> None:
    running = start(folder, "raise SystemExit('no such disk')")
    with pytest.raises(PartEnded, match="no such disk"):
        running.wait_ready(lambda: "not yet", 300)


def test_stops_a_part_that_is_never_ready_and_reports_the_last_reason(folder: LocalFolder) -> None:
    running = start(folder, SLEEPS)
    with pytest.raises(PartNotReady, match="database is unavailable"):
        running.wait_ready(lambda: "database is unavailable", 0)
    assert is_gone(running.pid)
    assert list_pid_files(folder) == []


def test_a_deaf_part_is_killed(folder: LocalFolder) -> None:
    running = start(folder, STUBBORN, stop_seconds=0)
    running.wait_ready(lambda: None if "deaf" in running.log.read_text() else "starting", 300)
    running.stop()
    assert is_gone(running.pid)
    running.stop()


def test_the_log_of_the_last_start_is_kept_and_a_failure_told(folder: LocalFolder) -> None:
    for word in ("first", "second"):
        start(folder, f"print('{word}')").wait_done(300)
    assert (folder.logs / "one.log").read_text() == "second\n"
    assert (folder.logs / "one.previous.log").read_text() == "first\n"
    with pytest.raises(PartEnded, match="code 3"):
        start(folder, "raise SystemExit(3)").wait_done(300)


STARTER = """
import os, sys, time
from pathlib import Path
from inference_store.local.folder import LocalFolder
from inference_store.local.part import Part, RunningPart
folder = LocalFolder(Path(sys.argv[1]))
one = Part("one", (sys.executable, "-c", sys.argv[2]), os.environ, folder.path)
print(RunningPart(one, folder).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends orphans by itself")
def test_on_linux_a_part_dies_with_its_starter(folder: LocalFolder) -> None:
    command = (sys.executable, "-c", STARTER, str(folder.path), SLEEPS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    wait_until(lambda: is_gone(pid), seconds=300, what="its end")


def test_ends_a_leftover_process_by_its_pid_file(folder: LocalFolder) -> None:
    running = start(folder, SLEEPS)
    assert end_leftovers(folder, {"one": signal.SIGTERM}) == ["one"]
    wait_until(lambda: is_gone(running.pid), seconds=300, what="its end")
    assert list_pid_files(folder) == []
    running.stop()


def test_a_pid_that_is_another_process_now_is_left_alone(folder: LocalFolder) -> None:
    running = start(folder, SLEEPS)
    file = folder.run / "one.pid.json"
    file.write_text(file.read_text().replace("600", "6000"))  # the command differs
    assert end_leftovers(folder, {"one": signal.SIGTERM}) == []
    assert not is_gone(running.pid)
    running.stop()


def test_a_broken_or_old_pid_file_is_removed(folder: LocalFolder) -> None:
    for content in ("", "{", '{"pid": 999999999, "started": 1, "command": []}'):
        (folder.run / "one.pid.json").write_text(content)
        assert end_leftovers(folder, {"one": signal.SIGTERM}) == [], content
        assert list_pid_files(folder) == [], content
