"""What the demo prints: lines that stay, and one line of progress that is written over."""

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

_TERMINAL_SECONDS = 0.1
_FILE_SECONDS = 5.0
_CLEAR_LINE = "\r\x1b[K"


@dataclass(slots=True)
class Screen:
    """A terminal, or a file that stands in for one (there, progress is a line now and then)."""

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
        """Show where things are, not more often than one can read."""
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
