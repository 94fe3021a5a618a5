"""What comes through the socket: read at once, and given out one after the other, until that was
all or the time is up."""

import time
from queue import SimpleQueue

from .counts import Counts
from .frames import Reader, Sent
from .grace import last_words
from .page import Cell, Page


class Arrivals:
    """Between the thread that reads and the one that decodes; the one budget bounds it."""

    def __init__(self, reader: Reader, page: Page, counts: Counts, *, grace_seconds: float) -> None:
        """`grace_seconds`: the time that there is after the serving process has died."""
        self._reader, self._page, self._counts = reader, page, counts
        self._grace_seconds = grace_seconds
        self._came: SimpleQueue[Sent | None] = SimpleQueue()
        self._ended: float | None = None

    def read(self) -> None:
        """Take over what comes, until nothing can come any more; in a thread."""
        try:
            while (sent := self._reader.exchange()) is not None:
                self._counts.receive()
                self._came.put(sent)
        finally:
            self._ended = time.monotonic()
            self._came.put(None)

    def next(self) -> Sent | None:
        """The next one, once it is there; None: that was all, or the time is up."""
        sent = self._came.get()
        return None if self.is_late else sent

    @property
    def were_cut_off(self) -> bool:
        """Whether the serving process has gone without a word."""
        return self._ended is not None and not self._page.cells[Cell.DEADLINE]

    @property
    def deadline(self) -> float | None:
        """When all must have ended, of the monotonic clock; None: nobody asks for it yet."""
        asked = self._page.cells[Cell.DEADLINE]
        if asked:
            return asked / 1e9
        return None if self._ended is None else self._ended + self._grace_seconds

    @property
    def left(self) -> float:
        """Seconds until all must have ended."""
        deadline = self.deadline
        return self._grace_seconds if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def is_late(self) -> bool:
        """Whether the time is up, but for the last words."""
        deadline = self.deadline
        words = last_words(self._grace_seconds)
        return deadline is not None and deadline - words < time.monotonic()
