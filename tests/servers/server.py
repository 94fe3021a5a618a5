"""The base of the servers: start, stop, kill and restart, with one port and one folder."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

from .process import LeashedProcess
from .waiting import wait_until

# Root may run a server as another user, who may have no access to TMPDIR.
SHARED_TEMPORARY = "/tmp" if os.geteuid() == 0 else None


class Server:
    """One server of 127.0.0.1 with its data in a temporary folder below `parent`.

    A context manager: started on entering; stopped, and its data removed, on leaving.
    All calls block: from a coroutine, `await asyncio.to_thread(server.restart)`.
    """

    name: str
    stop_signal = signal.SIGTERM
    last_signal = signal.SIGKILL
    start_seconds = 180.0

    def __init__(self, parent: str | None = SHARED_TEMPORARY) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"inference-store-{self.name}-", dir=parent))
        self._process: LeashedProcess | None = None

    def start(self) -> None:
        """Start it and wait until it answers. Raises RuntimeError with the end of its log."""
        process = self._process = self._launch()
        try:
            wait_until(
                lambda: not process.running or self._answers(),
                seconds=self.start_seconds,
                what=f"{self.name} answers",
            )
        except TimeoutError as exc:
            raise RuntimeError(f"{exc}\n{process.last_lines()}") from exc
        if not process.running:
            raise RuntimeError(f"{self.name} ended at its start\n{process.last_lines()}")

    def stop(self) -> None:
        """End it in order; it keeps its data and port."""
        if self._process is not None:
            self._process.stop(by=self.stop_signal)
            self._process = None

    def kill(self) -> None:
        """End it and all its children by SIGKILL; it keeps its data and port."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and data."""
        self.stop()
        self.start()

    def start_if_ended(self) -> None:
        """Wait until it answers; start it again, as a supervisor does, if it has ended."""
        process = self._process
        if process is not None:
            wait_until(
                lambda: not process.running or self._answers(),
                seconds=self.start_seconds,
                what=f"{self.name} answers or ends",
            )
        if process is None or not process.running:
            self.restart()

    def pids(self) -> list[int]:
        """Return the pids of its processes, without the leash; [] while it is stopped."""
        return [] if self._process is None else self._process.pids()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> LeashedProcess:
        """Start the process; before the first start, prepare its data."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Return whether it can be used now; False while it starts."""
        raise NotImplementedError

    def _run(
        self, command: list[str], *, environment: dict[str, str] | None = None, user: str = ""
    ) -> LeashedProcess:
        return LeashedProcess(
            command,
            log=self.folder / f"{self.name}.log",
            environment={**os.environ, **(environment or {})},
            cwd=self.folder,
            user=user,
            last_signal=self.last_signal,
            folder=self.folder,
        )
