"""A process that cannot outlive the tests: started, stopped, killed, with the pids of its tree."""

import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

_LEASH = Path(__file__).with_name("leash.py")
_LOG_LINES = 25


class WatchedProcess(ABC):
    """A process that cannot outlive the tests, however it was started."""

    pid: int

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it has not ended yet."""

    @abstractmethod
    def wait(self, seconds: float) -> int:
        """Return its exit code, 128 + n after signal n. Raises subprocess.TimeoutExpired."""

    def pids(self) -> list[int]:
        """Return the pids of the command and its running descendants, for CPU accounting."""
        return [process.pid for process in self._tree()]

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the command; nothing happens if it has ended."""
        if self.running:
            try:
                psutil.Process(self.pid).send_signal(number)
            except psutil.NoSuchProcess:
                return

    def stop(self, *, by: signal.Signals = signal.SIGTERM, seconds: float = 90.0) -> int:
        """Signal it to end, and kill it after `seconds`. Return its exit code."""
        self.send_signal(by)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL the command and everything it started, and wait until all of it is gone.

        All of it is stopped first: no process lives on to see that another has been killed, or
        starts one that nobody kills.
        """
        stopped: list[psutil.Process] = []
        while started := [process for process in self._tree() if process not in stopped]:
            _signal_all(started, signal.SIGSTOP)
            stopped += started
        _signal_all(stopped, signal.SIGKILL)
        psutil.wait_procs(stopped, timeout=60)
        return self.wait(60)

    def last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _tree(self) -> list[psutil.Process]:
        if not self.running:
            return []
        try:
            command = psutil.Process(self.pid)
            return [command, *command.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def is_gone(pid: int) -> bool:
    """Check that the process is gone, or dead and not collected (containers without an init)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class LeashedProcess(WatchedProcess):
    """One command under the leash; see leash.py. Its output is appended to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str = "",
        last_signal: signal.Signals = signal.SIGKILL,
        folder: Path | None = None,
    ) -> None:
        super().__init__(log)
        arguments = [last_signal.name, str(folder or ""), user]
        with log.open("ab") as output:
            # -I -S: the leash needs nothing but the standard library, and starts in 20 ms.
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), *arguments, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=None if environment is None else dict(environment),
                cwd=cwd,
                start_new_session=True,  # Ctrl-C in a terminal is for the tests, not for servers
            )
        assert self._leash.stdout is not None
        with self._leash.stdout as printed:
            line = printed.readline()
        if not line:
            self._close()
            raise RuntimeError(f"{command[0]} could not be started\n{self.last_lines()}")
        self.pid = int(line)

    @property
    def running(self) -> bool:
        return self._leash.poll() is None

    def wait(self, seconds: float) -> int:
        code = self._leash.wait(seconds)
        self._close()
        return code

    def _close(self) -> None:
        assert self._leash.stdin is not None
        self._leash.stdin.close()
        self._leash.wait()
