"""How far an export is, on standard error."""

import sys
import time
from types import TracebackType
from typing import Final, Self

from inference_store_client.chunks import Chunk, Restart
from inference_store_client.plurals import write_count

_PAUSE_SECONDS: Final = 0.2


class Progress:
    """Counts what came, and shows it on a terminal a few times a second."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._begun = time.monotonic()
        self._shown: float | None = None

    def accept(self, item: Chunk | Restart) -> None:
        """Count a piece of the file."""
        if isinstance(item, Restart):
            self._count = self._bytes = 0
            return
        self._count += item.count
        self._bytes += len(item.content)
        now = time.monotonic()
        if sys.stderr.isatty() and now - (self._shown or self._begun) >= _PAUSE_SECONDS:
            self._shown = now
            self._write(f"\r{self.describe()} \x1b[K")

    def describe(self) -> str:
        """Return how much has come, in how long."""
        seconds = time.monotonic() - self._begun
        count = write_count(self._count, "inference")
        return f"{count}, {self._bytes / 1e6:,.1f} MB received, {seconds:.1f} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
