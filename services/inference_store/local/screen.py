"""The output of the demo: lines that stay, and one line of progress that is overwritten."""

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

_TERMINAL_SECONDS = 0.1
_FILE_SECONDS = 5.0
_CLEAR_LINE = "\r\x1b[K"


@dataclass(slots=True)
class Screen:
    """A terminal, or a file instead of one (there, progress is an occasional line)."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    _started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _open: bool = False

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._close()
        print(text, file=self.out, flush=True)

    def step(self, text: str) -> None:
        """Print a line that stays, with the seconds since the start."""
        self.say(f"[{time.monotonic() - self._started:5.1f} s] {text}")

    def progress(self, text: str) -> None:
        """Show the progress, not more often than a person can read."""
        now = time.monotonic()
        terminal = self.out.isatty()
        if now - self._shown < (_TERMINAL_SECONDS if terminal else _FILE_SECONDS):
            return
        self._shown = now
        if terminal:
            print(f"{_CLEAR_LINE}          {text}", end="", file=self.out, flush=True)
            self._open = True
        else:
            self.step(text)

    def _close(self) -> None:
        if self._open:
            print(_CLEAR_LINE, end="", file=self.out)
            self._open = False
