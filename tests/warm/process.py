"""A process of a Python module: forked from the warm one where there is one, else started cold."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO

from tests.servers.process import LeashedProcess, WatchedProcess
from tests.servers.sharing import ask_for_server
from tests.servers.waiting import wait_until

COLD = "INFERENCE_STORE_TEST_COLD"
"""The variable that has a process start as a user's does: each one of a run, or one in whose own
environment it is."""

_CLI = "inference_store.cli.main"


@contextmanager
def running_warm() -> Iterator[str]:
    """The socket of a `python -m tests.warm`."""
    with tempfile.TemporaryDirectory(prefix="inference-store-warm-") as folder:
        path, log = Path(folder, "socket"), Path(folder, "log")
        command = [sys.executable, "-m", "tests.warm", str(path)]
        process = LeashedProcess(command, log=log)
        try:
            wait_until(
                lambda: not process.running or b"ready" in log.read_bytes(),
                seconds=180,
                what="everything imported",
            )
            if not process.running:
                raise RuntimeError(f"the warm process ended\n{process.last_lines()}")
            yield str(path)
        finally:
            process.kill()


def find_warm(environment: Mapping[str, str]) -> str | None:
    """The socket of the run's warm process; None if a process with this environment starts cold.

    Another PYTHONPATH is other code, and what Python reads at its start it does not read again.
    """
    if "1" in {os.environ.get(COLD), environment.get(COLD)}:
        return None
    for name, value in environment.items():
        if name.startswith("PYTHON") and value != os.environ.get(name):
            return None
    return _find_warm()


@cache
def _find_warm() -> str | None:
    path: str | None = ask_for_server("warm")
    return path


class WarmProcess(WatchedProcess):
    """A module that runs in a process forked from one that has imported everything."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        warm: str,
        output: Path,
        error: Path,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        super().__init__(error)
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(warm)
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
        }
        with output.open("ab") as out, error.open("ab") as wrong:
            _send(self._connection, request, [out, wrong])
        answers = self._connection.makefile("rb")
        self.pid = int(answers.readline())
        self._end = _End()
        threading.Thread(target=_read_end, args=(answers, self._end), daemon=True).start()
        # Whoever forgets a process ends it; the thread has no hold on this object.
        weakref.finalize(self, _cut, self._connection)

    @property
    def running(self) -> bool:
        return not self._end.said.is_set()

    def wait(self, seconds: float) -> int:
        if not self._end.said.wait(seconds):
            raise subprocess.TimeoutExpired("a warm process", seconds)
        return self._end.code


@dataclass
class _End:
    """How a process ended, once it was said."""

    said: threading.Event = field(default_factory=threading.Event)
    code: int = -1


def _read_end(answers: BinaryIO, end: _End) -> None:
    with answers:
        end.code = int(answers.readline() or -1)
    end.said.set()


def _cut(connection: socket.socket) -> None:
    """Let the watcher see that nobody waits any more: it kills what still runs."""
    with suppress(OSError):  # it has gone itself
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _send(connection: socket.socket, request: object, files: Sequence[IO[bytes]]) -> None:
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], [file.fileno() for file in files])
    connection.sendall(data[sent:])


def start_module(
    module: str, *arguments: str, log: Path, environment: Mapping[str, str]
) -> WatchedProcess:
    """Start `python -m module` with its output and errors appended to `log`."""
    warm = find_warm(environment)
    environment = {name: value for name, value in environment.items() if name != COLD}
    if warm is None:
        command = [sys.executable, "-m", module, *arguments]
        return LeashedProcess(command, log=log, environment=environment)
    folder = Path.cwd()
    return WarmProcess(
        module, arguments, warm=warm, output=log, error=log, environment=environment, folder=folder
    )


def run_command(
    *words: str,
    environment: Mapping[str, str],
    folder: Path | None = None,
    seconds: float = 120.0,
) -> "subprocess.CompletedProcess[str]":
    """Run `inference-store` to its end, as `subprocess.run` with its output captured would."""
    command, warm = [sys.executable, "-m", _CLI, *words], find_warm(environment)
    if warm is None:
        return subprocess.run(
            command,
            env=dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    with tempfile.TemporaryDirectory() as made:
        output, error = Path(made, "output"), Path(made, "error")
        process = WarmProcess(
            _CLI,
            words,
            warm=warm,
            output=output,
            error=error,
            environment=environment,
            folder=folder or Path.cwd(),
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        code = 128 - code if code > 128 else code
        return subprocess.CompletedProcess(command, code, output.read_text(), error.read_text())
