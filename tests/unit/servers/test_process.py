"""A leashed process ends when told to, and with the process that started it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
WITH_A_CHILD = (sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP!r})")
OWNER = """
import sys, threading
from pathlib import Path
from tests.servers.process import LeashedProcess
made = []
def start():
    made.append(LeashedProcess({command!r}, log=Path({log!r}), folder=Path({folder!r})))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(made[0].pid, flush=True)
sys.stdin.read()
"""


def test_its_exit_code_and_output_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('said'); raise SystemExit(3)"]
    process = LeashedProcess(command, log=tmp_path / "log")
    assert process.wait(120) == 3
    assert process.last_lines() == "said"
    assert process.pids() == []
    process.send_signal(signal.SIGTERM)


def test_stop_sends_sigterm(tmp_path: Path) -> None:
    process = LeashedProcess(SLEEP, log=tmp_path / "log")
    assert process.stop() == 128 + signal.SIGTERM
    assert not process.running


def test_kill_takes_the_children_along(tmp_path: Path) -> None:
    process = LeashedProcess(WITH_A_CHILD, log=tmp_path / "log")
    wait_until(lambda: len(process.pids()) == 2, seconds=120, what="the child runs")
    pids = process.pids()
    assert process.kill() == 128 + signal.SIGKILL
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_paused_process_goes_on(tmp_path: Path) -> None:
    process = LeashedProcess(SLEEP, log=tmp_path / "log")
    command = psutil.Process(process.pid)
    leash = command.parent()
    assert leash is not None
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: command.status() == "stopped", seconds=120, what="the pause")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: command.status() == "sleeping", seconds=120, what="the end of the pause")
    wait_until(lambda: leash.status() == "sleeping", seconds=120, what="the leash rests")
    assert process.stop() == 128 + signal.SIGTERM


def test_reports_a_process_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-program"):
        LeashedProcess([str(tmp_path / "no-such-program")], log=tmp_path / "log")


def test_it_dies_with_its_owner_not_with_the_thread(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = OWNER.format(command=SLEEP, log=str(tmp_path / "log"), folder=str(data))
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert psutil.pid_exists(pid)
        owner.kill()
    wait_until(lambda: not psutil.pid_exists(pid), seconds=120, what="the command ends")
    wait_until(lambda: not data.exists(), seconds=120, what="its folder is removed")


def test_it_dies_with_its_leash(tmp_path: Path) -> None:
    process = LeashedProcess(SLEEP, log=tmp_path / "log")
    leash = psutil.Process(process.pid).parent()
    assert leash is not None
    leash.kill()
    wait_until(lambda: not psutil.pid_exists(process.pid), seconds=120, what="the command ends")
    assert not process.running
    assert process.wait(1) == -signal.SIGKILL
