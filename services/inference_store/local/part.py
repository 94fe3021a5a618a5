"""A part of the stack: a process of its own, tied to ours so that it does not outlive us."""

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import psutil

from .folder import LocalFolder, PartEnded, PartNotReady

READY_SECONDS = 180.0
"""How long a part may take to become ready on a busy machine: Postgres recovers after a kill, the
model server trains a classifier. A part that ends instead is noticed at once."""
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.05
_LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class RunAs:
    """A user of the machine to run a process as (only root may choose)."""

    user: int
    group: int


@dataclass(frozen=True, slots=True)
class Part:
    """A program to start, and how to end it."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    current_folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    """The signal for a regular end."""
    orphan_signal: signal.Signals = signal.SIGKILL
    """The signal that the kernel sends it when we are killed. Every part survives kill -9."""
    stop_seconds: float = 20.0
    """How long it may take to end before it is killed."""
    run_as: RunAs | None = field(default=None)


class RunningPart:
    """A part that was started. Its output goes to a file of the folder's `logs`."""

    def __init__(self, part: Part, folder: LocalFolder) -> None:
        self.part = part
        self.log = folder.logs / f"{part.name}.log"
        if self.log.exists():  # the log of the last start is kept, older ones are not
            self.log.replace(self.log.with_suffix(".previous.log"))
        self._process = _spawn(part, self.log, folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise PartEnded if the process has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise PartEnded(self.part.name, code, str(self.log), "\n".join(lines[-_LAST_LINES:]))

    def wait_ready(self, problem: Callable[[], str | None], seconds: float) -> None:
        """Wait until `problem` returns None; its last result is the reason in the error. A part
        that did not become ready is stopped.

        Raises PartEnded, PartNotReady.
        """
        deadline = time.monotonic() + seconds
        try:
            while (reason := problem()) is not None:
                self.check()
                if time.monotonic() > deadline:
                    raise PartNotReady(self.part.name, seconds, reason, str(self.log))
                time.sleep(_POLL_SECONDS)
        except BaseException:  # whatever it is, Ctrl-C too
            self.stop()
            raise

    def wait_done(self, seconds: float, codes: Sequence[int] = (0,)) -> None:
        """Wait for the end of a process that has one thing to do.

        Raises PartEnded if it ends with none of the `codes`, PartNotReady if it takes longer than
        `seconds`.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.stop()
            raise PartNotReady(self.part.name, seconds, "not done", str(self.log)) from error
        if code not in codes:
            self.check()

    def stop(self) -> None:
        """Signal the process to end, and kill it if it does not. A second call does nothing."""
        if self._process.poll() is None:
            self._process.send_signal(self.part.stop_signal)
            try:
                self._process.wait(self.part.stop_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def find_problem(url: str, *, any_answer: bool = False) -> str | None:
    """Return why a server is not ready; None once it answers with success, or anything."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        with error:
            return None if any_answer else error.read().decode("utf-8", errors="replace")
    except OSError as error:
        return str(error)
    return None


def _spawn(part: Part, log: Path, folder: LocalFolder) -> subprocess.Popen[bytes]:
    run_as = part.run_as
    with open(log, "wb") as output:
        return subprocess.Popen(
            part.command,
            env={**part.environment, _MARK: str(folder.path)},
            cwd=part.current_folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A session of its own: Ctrl-C reaches us alone, and we end the parts in order.
            start_new_session=True,
            user=None if run_as is None else run_as.user,
            group=None if run_as is None else run_as.group,
            extra_groups=None if run_as is None else [],
            # Safe where it is called: no threads run while the stack is started.
            preexec_fn=_tie_to_us(part.orphan_signal),  # noqa: PLW1509
        )


def _tie_to_us(orphan_signal: signal.Signals) -> Callable[[], None] | None:
    """Return a function that lets the new process end with ours; None if the system cannot.

    It runs in the new process, after the change of its user (which would undo the tie). The kernel
    watches the thread that starts the process, so parts are started by the main thread.
    """
    if not sys.platform.startswith("linux"):
        return None  # the next start ends what is left
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(orphan_signal), 0, 0, 0)
        if os.getppid() != parent:  # we died before the tie was made
            os._exit(1)

    return tie


# Ends processes that an earlier stack of the same folder left running: on Linux the kernel ends the
# parts of a killed stack; elsewhere, and where that failed, the next start does it here.

_MARK = "LOCAL_STACK_FOLDER"
"""In the environment of every part."""
_WAIT_SECONDS = 10.0


def end_leftovers(folder: LocalFolder) -> list[int]:
    """End the parts that still run, the newest first, and kill those that do not end. Return their
    pids."""
    left: dict[int, tuple[psutil.Process, int, float, signal.Signals]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is not ours
            if process.environ().get(_MARK) == str(folder.path):
                # Postgres ends its sessions on this signal alone
                ask = signal.SIGINT if process.name() == "postgres" else signal.SIGTERM
                left[process.pid] = process, process.ppid(), process.create_time(), ask
    parts = [part for part in left.values() if part[1] not in left]
    for process, _, _, ask in sorted(parts, key=itemgetter(2), reverse=True):
        end(process, ask)
    return [process.pid for process, *_ in parts]


def end(process: psutil.Process, stop_signal: signal.Signals) -> None:
    """Ask `process` to end, wait, then kill it and its children."""
    with suppress(psutil.NoSuchProcess):
        children = process.children(recursive=True)
        process.send_signal(stop_signal)
        _, alive = psutil.wait_procs([process, *children], timeout=_WAIT_SECONDS)
        for remaining in alive:
            with suppress(psutil.NoSuchProcess):
                remaining.kill()
        psutil.wait_procs(alive, timeout=_WAIT_SECONDS)
