"""`inference-store demo` as a newcomer runs it: servers from wheels, processes, real input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("cv2", reason="the demo's packages are not installed")

INFERENCES = {"face-detector": 240, "people-detector": 240, "digit-classifier": 300}
FIRST_START_SECONDS = 600.0
NEXT_START_SECONDS = 300.0
PARTS = {"model-server", "postgres", "s3", "kafka", "ingester", "api", "retention", "proxy"}


class Demo:
    """A demo that runs; its output goes to a file, as that of any background job."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output.txt"
        self._run = folder / ".inference-store" / "run"
        command = (sys.executable, "-m", "inference_store.cli.main", "demo")
        # As in the shell of somebody who works with a real store beside it.
        environment = os.environ | {"INFERENCE_STORE_POSTGRES_DSN": "postgresql://production/real"}
        with open(self.output, "wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment
            )

    def wait_serving(self, seconds: float) -> None:
        wait_for(lambda: "Serving until" in self._text_while_alive(), seconds)

    def _text_while_alive(self) -> str:
        text = self.output.read_text()
        assert self.process.poll() is None, text
        return text

    @property
    def api(self) -> str:
        found = re.search(r"REST API\s+(http://\S+)", self.output.read_text())
        assert found is not None
        return found[1]

    def pids(self) -> dict[str, int]:
        """The parts' processes by their pid files."""
        files = self._run.glob("*.pid.json")
        return {file.name.split(".")[0]: json.loads(file.read_text())["pid"] for file in files}


@contextmanager
def demo(folder: Path) -> Iterator[Demo]:
    running = Demo(folder)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(180)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def is_gone(pid: int) -> bool:
    """No such process, or a dead one that nobody has collected (containers without an init)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def counts(api: str, filter_text: str | None = None) -> dict[str, int]:
    """How many inferences each model has, or how many of them match."""
    found = {}
    for model in INFERENCES:
        request = urllib.request.Request(
            f"{api}/v1/models/{model}/inferences/count",
            data=json.dumps({"filter": filter_text} if filter_text else {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found[model] = json.load(answer)["count"]
    return found


def send_own_picture(printed: str, folder: Path) -> None:
    """As pasted into a shell: the picture behind the first answer goes through the proxy again."""
    blocks = re.findall(r"^# (?:The|What was).*:\n((?:.+\n)+)", printed, re.MULTILINE)
    fetch, send, look = blocks
    subprocess.run(fetch, shell=True, cwd=folder, check=True)
    answer = json.loads(subprocess.check_output(send, shell=True, cwd=folder))
    assert answer["id"] == "mine"
    wait_for(lambda: b'"mine"' in subprocess.check_output(look, shell=True), 180)
    found = json.loads(subprocess.check_output(look, shell=True))
    assert (found["protocol"], found["ok"], found["width"]) == ("v2", True, 400)


def assert_the_doctor_finds_nothing(printed: str, folder: Path) -> None:
    """As pasted into a shell: the demo is sound, and the doctor says so."""
    (command,) = re.findall(r"^\(set -a; .* doctor\)$", printed, re.MULTILINE)
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      topic: 3 partitions" in done.stdout


def remove_database(output: Path) -> None:
    """As root the database lies outside the test's folder, and would stay behind."""
    found = re.search(r"(/\S+)/data: the database", output.read_text())
    if found is not None:
        shutil.rmtree(found[1])


def test_the_demo_feeds_once_answers_and_leaves_no_process(tmp_path: Path) -> None:
    with demo(tmp_path) as first:
        first.wait_serving(FIRST_START_SECONDS)
        assert counts(first.api) == INFERENCES
        half = {model: count // 2 for model, count in INFERENCES.items()}
        for protocol in ("v2", "v2-grpc"):  # the proxy captured each call, over both transports
            assert counts(first.api, f"protocol = '{protocol}' AND ok") == half
        printed = first.output.read_text()
        commands = re.findall(r"^curl -s .*?-d '.*?'$", printed, re.MULTILINE | re.DOTALL)
        assert len(commands) == 3
        for command in commands:  # as pasted into a shell
            answer = json.loads(subprocess.check_output(command, shell=True, text=True))
            assert len(answer["items"]) >= 2
        assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN" in printed
        assert "→ none" not in printed
        assert "nothing found" not in printed
        send_own_picture(printed, tmp_path)
        assert_the_doctor_finds_nothing(printed, tmp_path)
        api = first.api
        fed = INFERENCES | {"face-detector": INFERENCES["face-detector"] + 1}
        pids = first.pids()
        assert set(pids) == PARTS
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(180) == 0
    assert all(is_gone(pid) for pid in pids.values())

    # kill -9 of the next start, then one more: the data is there, not twice, and nothing is left.
    with demo(tmp_path) as second:
        second.wait_serving(NEXT_START_SECONDS)
        assert "all there" in second.output.read_text()
        pids = second.pids()
        second.process.kill()
        second.process.wait(180)
    if sys.platform == "linux":
        wait_for(lambda: all(is_gone(pid) for pid in pids.values()), 120)
    with demo(tmp_path) as third:
        third.wait_serving(NEXT_START_SECONDS)
        assert all(is_gone(pid) for pid in pids.values())
        assert third.api == api
        assert counts(third.api) == fed
        pids = third.pids()
    assert all(is_gone(pid) for pid in pids.values())
    remove_database(third.output)
