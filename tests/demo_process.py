"""`inference-store demo` as a process of its own."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil


class Demo:
    """A running demo; its output goes to a file, like that of any background job."""

    def __init__(self, folder: Path, begin: Sequence[str] = ()) -> None:
        self.output = folder / "output.txt"
        self.node = folder / "node-was-called"
        command = (*begin, sys.executable, "-m", "inference_store.cli.main", "demo")
        # Like the shell of somebody who also works with a real store.
        environment = os.environ | {"INFERENCE_STORE_POSTGRES_DSN": "postgresql://production/real"}
        environment["PATH"] = f"{self._make_traps(folder)}:{environment['PATH']}"
        with open(self.output, "wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment
            )

    def _make_traps(self, folder: Path) -> Path:
        """Return a folder of programs that the demo must not call."""
        traps = folder / "traps"
        traps.mkdir(exist_ok=True)
        for name in ("node", "npm", "npx"):
            (traps / name).write_text(f"#!/bin/sh\ntouch '{self.node}'\nexit 1\n")
            (traps / name).chmod(0o755)
        return traps

    def wait_serving(self, seconds: float) -> None:
        wait_for(lambda: "Serving until" in self._read_output(), seconds)

    def _read_output(self) -> str:
        text = self.output.read_text()
        assert self.process.poll() is None, text
        return text

    @property
    def api(self) -> str:
        match = re.search(r"REST API\s+(http://\S+)", self.output.read_text())
        assert match is not None
        return match[1]

    @property
    def proxy(self) -> str:
        match = re.search(r"proxy\s+(http://\S+), gRPC", self.output.read_text())
        assert match is not None
        return match[1]

    def pids(self) -> dict[str, int]:
        """Return the pids of the parts, by the logs that they write to."""
        parts = psutil.Process(self.process.pid).children()
        return {Path(os.readlink(f"/proc/{part.pid}/fd/1")).stem: part.pid for part in parts}


@contextmanager
def demo(folder: Path, begin: Sequence[str] = ()) -> Iterator[Demo]:
    """A demo that is stopped at the end; `begin`: what its command begins with."""
    running = Demo(folder, begin)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(300)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def remove_database(output: Path) -> None:
    """Remove the database that lies outside the test's folder if root runs the demo."""
    match = re.search(r"(/\S+)/data: the database", output.read_text())
    if match is not None:
        shutil.rmtree(match[1])
