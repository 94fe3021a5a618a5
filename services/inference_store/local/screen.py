"""The output of the demo: lines that stay, and one line of progress that is overwritten."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

_TERMINAL_SECONDS = 0.1
_FILE_SECONDS = 3.0
_QUIET_SECONDS = 3.0
_CLEAR_LINE = "\r\x1b[K"


@dataclass(slots=True)
class Screen:
    """A terminal, or a file instead of one (there, progress is an occasional line)."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    _started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _open: bool = False
    _writes: bool = False
    _step: str = ""

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Say every few seconds that the last step goes on, if nothing else is said."""
        # not by a thread: processes that are forked meanwhile would inherit its locks
        signal.signal(signal.SIGALRM, lambda *_: self._go_on())
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _go_on(self) -> None:
        is_quiet = time.monotonic() - self._shown > _QUIET_SECONDS
        if self._step and is_quiet and not self._writes:
            self.progress(f"... {self._step}")

    def rest(self) -> None:
        """Say nothing until the next step."""
        self._step = ""

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._print(f"{_CLEAR_LINE if self._open else ''}{text}\n")
        self._open = False

    def step(self, text: str) -> None:
        """Print a line that stays, with the seconds since the start."""
        self._step = text.strip().partition(":")[0]
        self._say_at(text)

    def _say_at(self, text: str) -> None:
        self.say(f"[{time.monotonic() - self._started:5.1f} s] {text}")

    def progress(self, text: str) -> None:
        """Show the progress, not more often than a person can read."""
        now = time.monotonic()
        terminal = self.out.isatty()
        if now - self._shown < (_TERMINAL_SECONDS if terminal else _FILE_SECONDS):
            return
        if terminal:
            self._print(f"{_CLEAR_LINE}          {text}")
            self._open = True
        else:
            self._say_at(text)

    def _print(self, text: str) -> None:
        self._shown, self._writes = time.monotonic(), True
        print(text, end="", file=self.out, flush=True)
        self._writes = False
